"""Which nodes refuse what they say they have room for, kind of request by kind.

A node that is full says so, and nobody goes there. One that has free places by its own word and
takes nothing would get every request first, for it looks idle: all would be refused once, until no
retries are left. After a few refusals in a row it is left alone for a while that doubles; then one
request at a time tries it, until one is taken. Refusals of one kind say nothing of others, so that
nobody can have a node left alone by asking for what it lacks.

A node that finds fault with every request is right while clients are wrong, and looks idle as well.
After a few in a row it is doubted: what another node then takes, it has refused. Pure: time is
handed in.
Read next: `gateway.routing.node_health` (which has them), `gateway.routing.room`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from contracts.ids import NodeId
from gateway.routing.route_plan import RequestKind, RouteNeed

_MAX_IN_A_ROW: Final = 5
_MAX_BLAMED_IN_A_ROW: Final = 3
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 30.0


@dataclass(slots=True)
class _Streak:
    """Refusals of a kind by one node since it last took one."""

    num_refusals: int = 0
    num_blamed: int = 0
    """Requests that it found fault with."""
    num_pauses: int = 0
    paused_until_s: float = float("-inf")


class Refusals:
    """All nodes' streaks."""

    def __init__(self) -> None:
        """Nobody has refused anything."""
        self._streaks: dict[RequestKind, dict[NodeId, _Streak]] = {}

    def note_refused(self, node_id: NodeId, need: RouteNeed, now_s: float) -> bool:
        """The node has refused a request that it seemed to have room for; True when it is left
        alone from now on.
        """
        streaks = self._streaks.setdefault(need.kind, {})
        streak = streaks.setdefault(node_id, _Streak())
        streak.num_refusals += 1
        if streak.num_refusals != _MAX_IN_A_ROW:
            return False
        _pause(streak, now_s)
        return True

    def note_blamed(self, node_id: NodeId, need: RouteNeed) -> None:
        """The node has found fault with a request."""
        streaks = self._streaks.setdefault(need.kind, {})
        streaks.setdefault(node_id, _Streak()).num_blamed += 1

    def is_doubted(self, node_id: NodeId, need: RouteNeed) -> bool:
        """Whether another node should be asked what it finds."""
        streak = self._streaks.get(need.kind, {}).get(node_id)
        return streak is not None and streak.num_blamed > _MAX_BLAMED_IN_A_ROW

    def note_sent(self, node_id: NodeId, need: RouteNeed, now_s: float) -> None:
        """A request is on its way: where it is a trial, the next one comes a pause later."""
        if not self._streaks:
            return
        streak = self._streaks.get(need.kind, {}).get(node_id)
        if streak is not None and streak.num_refusals >= _MAX_IN_A_ROW:
            _pause(streak, now_s)

    def note_taken(self, node_id: NodeId, need: RouteNeed) -> None:
        """The node has taken a request, and so may others of its kind."""
        if not self._streaks:
            return
        kind = need.kind
        streaks = self._streaks.get(kind)
        if streaks is not None and streaks.pop(node_id, None) is not None and not streaks:
            del self._streaks[kind]

    def forget(self, node_id: NodeId) -> None:
        """The node is another one from now on, or gone."""
        for kind, streaks in tuple(self._streaks.items()):
            streaks.pop(node_id, None)
            if not streaks:
                del self._streaks[kind]

    def list_paused(self, need: RouteNeed, now_s: float) -> Iterator[NodeId]:
        """Nodes that are left alone by requests of this kind now."""
        if not self._streaks:
            return
        for node_id, streak in self._streaks.get(need.kind, {}).items():
            if streak.paused_until_s > now_s:
                yield node_id


def _pause(streak: _Streak, now_s: float) -> None:
    """Leaves the node alone from now on, for longer each time."""
    pause_s = min(_FIRST_PAUSE_S * 2 ** min(streak.num_pauses, 16), _LONGEST_PAUSE_S)
    streak.num_pauses += 1
    streak.paused_until_s = max(streak.paused_until_s, now_s + pause_s)
