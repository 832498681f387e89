"""Which nodes refuse what they say they have room for, kind of request by kind.

A node that is full says so, and nobody goes there. One that has free places by its own word and
takes nothing would get every request first, for it looks idle: all would be refused once, until no
retries are left. After a few refusals in a row it is left alone for a while that doubles; then one
request at a time tries it, until one is taken.

Nobody can have a node left alone by others. Refusals of one kind of request say nothing of others;
and nodes in order differ as well, by engine, version or haste, so that one account can ask for
what a node refuses and another takes, as often as it likes: all that it gets refused leaves the
node alone by itself, and only a part counts for all.

A node that finds fault with every request is right while clients are wrong, and looks idle as well.
After a few in a row it is doubted: what another node then takes, it has refused. So is one that
finds too long what its context seems to hold. Pure: time is handed in.
Read next: `gateway.routing.node_health` (which has them), `gateway.routing.room`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from contracts.ids import NodeId
from gateway.routing.route_plan import RequestKind, RouteNeed
from gateway.routing.standings import find_pause_s

_MAX_IN_A_ROW: Final = 5
_MOST_OF_ONE: Final = 2
"""Of those that count for all: so many come from one account at most."""
_MAX_BLAMED_IN_A_ROW: Final = 3


@dataclass(slots=True)
class _Streak:
    """Refusals in a row, of one account's requests or of all."""

    num_refusals: int = 0
    num_pauses: int = 0
    paused_until_s: float = float("-inf")

    def add(self, now_s: float) -> bool:
        """One more; True when the node is left alone from now on."""
        self.num_refusals += 1
        if self.num_refusals != _MAX_IN_A_ROW:
            return False
        self.pause(now_s)
        return True

    def note_sent(self, now_s: float) -> None:
        """A request is on its way: where it is a trial, the next one comes a pause later."""
        if self.num_refusals >= _MAX_IN_A_ROW:
            self.pause(now_s)

    def pause(self, now_s: float) -> None:
        """The node is left alone from now on, for longer each time."""
        pause_s = find_pause_s(self.num_pauses)
        self.num_pauses += 1
        self.paused_until_s = max(self.paused_until_s, now_s + pause_s)


@dataclass(slots=True)
class _Record:
    """What a node has done with requests of a kind since it last took one."""

    num_blamed: int = 0
    """That it found fault with."""
    of_all: _Streak = field(default_factory=_Streak)
    by_owner: dict[int, _Streak] = field(default_factory=dict[int, _Streak])
    """Of each account that had some refused."""

    def list_streaks(self, owner: int) -> Iterator[_Streak]:
        """Those that concern the account."""
        yield self.of_all
        if owner in self.by_owner:
            yield self.by_owner[owner]


class Refusals:
    """All nodes' records."""

    def __init__(self) -> None:
        """Nobody has refused anything."""
        self._records: dict[RequestKind, dict[NodeId, _Record]] = {}

    def note_refused(self, node_id: NodeId, need: RouteNeed, now_s: float) -> bool:
        """The node has refused a request that it seemed to have room for; True when it is left
        alone from now on, by the account or by all.
        """
        record = self._open(node_id, need)
        own = record.by_owner.setdefault(need.owner, _Streak())
        is_left_alone = own.add(now_s)
        if own.num_refusals <= _MOST_OF_ONE:
            is_left_alone = record.of_all.add(now_s) or is_left_alone
        return is_left_alone

    def note_blamed(self, node_id: NodeId, need: RouteNeed) -> None:
        """The node has found fault with a request."""
        self._open(node_id, need).num_blamed += 1

    def is_doubted(self, node_id: NodeId, need: RouteNeed) -> bool:
        """Whether another node should be asked what it finds."""
        record = self._records.get(need.kind, {}).get(node_id)
        return record is not None and record.num_blamed > _MAX_BLAMED_IN_A_ROW

    def list_doubted(self, need: RouteNeed) -> Iterator[NodeId]:
        """Nodes whose word on requests of this kind is not worth much."""
        for node_id, record in self._records.get(need.kind, {}).items():
            if record.num_blamed > _MAX_BLAMED_IN_A_ROW:
                yield node_id

    def note_sent(self, node_id: NodeId, need: RouteNeed, now_s: float) -> None:
        """A request is on its way."""
        if not self._records:
            return
        record = self._records.get(need.kind, {}).get(node_id)
        if record is not None:
            for streak in record.list_streaks(need.owner):
                streak.note_sent(now_s)

    def note_taken(self, node_id: NodeId, need: RouteNeed) -> None:
        """The node has taken a request, and so may others of its kind."""
        if not self._records:
            return
        kind = need.kind
        records = self._records.get(kind)
        if records is not None and records.pop(node_id, None) is not None and not records:
            del self._records[kind]

    def forget(self, node_id: NodeId) -> None:
        """The node is another one from now on, or gone."""
        for kind, records in tuple(self._records.items()):
            records.pop(node_id, None)
            if not records:
                del self._records[kind]

    def list_paused(self, need: RouteNeed, now_s: float) -> Iterator[NodeId]:
        """Nodes that are left alone by such requests of the account now."""
        if not self._records:
            return
        for node_id, record in self._records.get(need.kind, {}).items():
            if any(one.paused_until_s > now_s for one in record.list_streaks(need.owner)):
                yield node_id

    def find_loner(self, need: RouteNeed) -> int:
        """The account of `need` where it alone leaves nodes alone; 0 where it is as all others."""
        if not self._records:
            return 0
        for record in self._records.get(need.kind, {}).values():
            own = record.by_owner.get(need.owner)
            if own is not None and own.num_refusals >= _MAX_IN_A_ROW:
                return need.owner
        return 0

    def _open(self, node_id: NodeId, need: RouteNeed) -> _Record:
        """The node's record, which begins now if there is none."""
        return self._records.setdefault(need.kind, {}).setdefault(node_id, _Record())
