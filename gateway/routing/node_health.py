"""Which nodes are in trouble, for everybody or for one account alone.

Nobody can have a node left alone by others: one account's requests may be such as an engine fails,
as often as it likes to ask. All of them count for itself, and of those in a row only a few for
everybody, until another account's has failed there, too. So a node that fails all is left alone as
soon as some have found out, and by a single account after as many failures as it takes for all.

A node that went away without saying so comes back on probation. Pure: time is handed in.
Read next: `gateway.routing.standings`, `gateway.routing.refusals`, `gateway.routing.fleet`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from contracts.ids import NodeId
from gateway.routing.own_clock import OwnClock
from gateway.routing.refusals import Refusals
from gateway.routing.route_plan import Rejection, RouteNeed
from gateway.routing.standings import LONGEST_PAUSE_S, Standing, Standings

_MOST_OF_ONE: Final = 2
"""Failures in a row that count for everybody, of one account."""
_MOST_OWNERS: Final = 1024
"""Accounts of whose failures is known, those that failed lately."""
_MEMORY_S: Final = 2 * LONGEST_PAUSE_S
"""How long an account keeps away from a node that others keep from proving itself to it."""


@dataclass(slots=True)
class _Presence:
    """What a node has, and whose requests it failed last."""

    num_under_way: int = 0
    owner: int = 0
    num_of_owner: int = 0
    """Failures in a row, with no other account's between them."""

    def counts_for_all(self, owner: int) -> bool:
        """Notes a failure; True while everybody should be wary. 0 is nobody's in particular."""
        if owner != self.owner:
            self.owner, self.num_of_owner = owner, 0
        self.num_of_owner += 1
        return not owner or self.num_of_owner <= _MOST_OF_ONE


class NodeHealth:
    """The standing of every node of this gateway."""

    def __init__(self, node_ids: Iterable[NodeId]) -> None:
        """All in good standing."""
        self.of_all: Final = Standings()
        self._presences: dict[NodeId, _Presence] = {}
        self._former: dict[NodeId, tuple[Standing, _Presence]] = {}
        """Of nodes that have left: requests that were there are still to be counted."""
        self._by_owner: dict[int, Standings] = {}
        """Of accounts that had some failed, the latest last: as they alone have found them."""
        self.refusals: Final = Refusals()
        self.clock: Final = OwnClock()
        for node_id in node_ids:
            self.admit(node_id)

    def list_troubled(self, now_s: float, need: RouteNeed | None = None) -> dict[NodeId, Rejection]:
        """Nodes that should get nothing now, or not what is needed, and why; without a need those
        that are in trouble for anybody.
        """
        troubled: dict[NodeId, Rejection] = {}
        if need is not None:
            paused = self.refusals.list_paused(need, now_s)
            troubled = dict.fromkeys(paused, Rejection.REFUSING)
        if not (self.of_all.concerned or self._by_owner):
            return troubled
        for standings in self._list_standings(need):
            if standings is not self.of_all:
                standings.forgive(now_s - _MEMORY_S)
            for node_id, standing in standings.list_concerned():
                if standing.open_until_s > now_s:
                    troubled[node_id] = Rejection.BREAKER_OPEN
                elif self._presences[node_id].num_under_way >= standing.most_under_way:
                    troubled.setdefault(node_id, Rejection.ON_PROBATION)
        return troubled

    def list_concerned(self) -> set[NodeId]:
        """Nodes of which somebody is wary: they get few requests or none from there."""
        return {one for standings in self._list_standings(None) for one in standings.concerned}

    def find_loner(self, need: RouteNeed) -> int:
        """The account of `need` where it alone leaves nodes alone; 0 where it is as all others."""
        own = self._by_owner.get(need.owner)
        if own is not None and own.concerned:
            return need.owner
        return self.refusals.find_loner(need)

    def count_under_way(self, node_id: NodeId) -> int:
        """Requests that were sent to the node and are not over."""
        return self._presences[node_id].num_under_way

    def admit(self, node_id: NodeId) -> None:
        """One more node, in the standing in which it left, if it was here before."""
        standing, presence = self._former.pop(node_id, None) or (Standing(), _Presence())
        self._presences[node_id] = presence
        self.of_all.admit(node_id, standing)

    def dismiss(self, node_id: NodeId) -> None:
        """The node is here no more."""
        self.refusals.forget(node_id)
        for own in self._by_owner.values():
            own.dismiss(node_id)
        standing = self.of_all.dismiss(node_id)
        assert standing is not None, "a node that was never here"
        self._former[node_id] = standing, self._presences.pop(node_id)

    def forget(self, node_id: NodeId) -> bool:
        """A node that has left is not to come back. False while it has requests that are not over,
        and nothing is forgotten.
        """
        if self._former[node_id][1].num_under_way:
            return False
        del self._former[node_id]
        self.clock.forget(node_id)
        return True

    def note_sent(self, node_id: NodeId) -> None:
        """A request is on its way."""
        self._presences[node_id].num_under_way += 1

    def note_over(self, node_id: NodeId) -> None:
        """A request is no longer at the node, however it ended."""
        presence = self._presences.get(node_id) or self._former[node_id][1]
        presence.num_under_way -= 1

    def note_begun(self, node_id: NodeId, owner: int) -> None:
        """The answer to a request of the account has begun. To be told once of each."""
        self.of_all.note_begun(node_id)
        own = self._by_owner.get(owner)
        if own is not None:
            own.note_begun(node_id)

    def note_success(self, node_id: NodeId, owner: int) -> None:
        """A node has answered a request of the account as it should."""
        self.of_all.note_success(node_id)
        own = self._by_owner.get(owner)
        if own is None:
            return
        own.note_success(node_id)
        standing = own.by_node.get(node_id)
        if standing is not None and standing.is_good:
            own.dismiss(node_id)
            if not own.by_node:
                del self._by_owner[owner]

    def note_failure(self, node_id: NodeId, now_s: float, owner: int) -> None:
        """A node has failed a request of the account that was in order."""
        num_nodes = len(self._presences)
        if self._presences[node_id].counts_for_all(owner):
            self.of_all.note_failure(node_id, now_s, num_nodes)
        if owner:
            own = self._by_owner.pop(owner, None) or Standings()
            self._by_owner[owner] = own  # the last one from now on
            own.note_failure(node_id, now_s, num_nodes)
            if len(self._by_owner) > _MOST_OWNERS:
                del self._by_owner[next(iter(self._by_owner))]

    def note_gone(self, node_id: NodeId) -> None:
        """The node went away without having said that it would."""
        self.of_all.put_on_probation(node_id)

    def _list_standings(self, need: RouteNeed | None) -> Iterator[Standings]:
        """Those that concern the account of `need`; without one, everybody's."""
        yield self.of_all
        if need is None:
            yield from self._by_owner.values()
        elif need.owner in self._by_owner:
            yield self._by_owner[need.owner]
