"""Which nodes are in trouble: a breaker and a probation for each, and a bound on how many go.

A node that fails several requests in a row, or far more than the others, is left alone for a while
that doubles with each relapse; then it is on probation, where it gets a few requests at a time
until enough have gone well. A node that went away without saying so comes back on probation. Never
more than half of the nodes are out at the same time: when most fail, the fault is not theirs.
Pure: time is handed in.
Read next: `gateway.routing.refusals`, `gateway.routing.fleet` (the caller).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from contracts.ids import NodeId
from gateway.routing.refusals import Refusals
from gateway.routing.route_plan import Rejection, RouteNeed

_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 30.0
_MAX_FAILURES_IN_A_ROW: Final = 5
_NUM_ON_PROBATION: Final = 2
"""Requests at a time."""
_NUM_TO_PROVE: Final = 5
"""Requests in a row that must go well."""
_MAX_SHARE_OUT: Final = 0.5
_DECAY: Final = 0.9
"""Of a node's failure rate, per request."""
_OUTLIER_RATE: Final = 0.3
_OUTLIER_RATIO: Final = 3.0
"""An outlier fails this often, and so many times as often as the others."""
_MIN_REQUESTS: Final = 20
"""Before anybody is called an outlier."""


@dataclass(slots=True)
class _Standing:
    """One node's."""

    num_in_a_row: int = 0
    num_proven: int = 0
    num_relapses: int = 0
    failure_rate: float = 0.0
    """Of its latest requests, older ones counting less."""
    num_requests: int = 0
    open_until_s: float = float("-inf")
    is_on_probation: bool = False
    num_under_way: int = 0


class NodeHealth:
    """The standing of every node of this gateway."""

    def __init__(self, node_ids: Iterable[NodeId]) -> None:
        """All in good standing."""
        self._standings = {node_id: _Standing() for node_id in node_ids}
        self._former: dict[NodeId, _Standing] = {}
        """Of nodes that have left: requests that were there are still to be counted."""
        self._concerned: set[NodeId] = set()
        """Those whose breaker is open or who are on probation."""
        self.refusals: Final = Refusals()

    def list_troubled(self, now_s: float, need: RouteNeed | None = None) -> dict[NodeId, Rejection]:
        """Nodes that should get nothing now, or not what is needed, and why."""
        troubled: dict[NodeId, Rejection] = {}
        if need is not None:
            paused = self.refusals.list_paused(need, now_s)
            troubled = dict.fromkeys(paused, Rejection.REFUSING)
        for node_id in self._concerned:
            standing = self._standings[node_id]
            if standing.open_until_s > now_s:
                troubled[node_id] = Rejection.BREAKER_OPEN
            elif standing.num_under_way >= _NUM_ON_PROBATION:
                troubled[node_id] = Rejection.ON_PROBATION
        return troubled

    def admit(self, node_id: NodeId) -> None:
        """One more node, in the standing in which it left, if it was here before."""
        standing = self._standings[node_id] = self._former.pop(node_id, None) or _Standing()
        if standing.is_on_probation:
            self._concerned.add(node_id)

    def dismiss(self, node_id: NodeId) -> None:
        """The node is here no more."""
        self.refusals.forget(node_id)
        self._former[node_id] = self._standings.pop(node_id)
        self._concerned.discard(node_id)

    def note_sent(self, node_id: NodeId) -> None:
        """A request is on its way."""
        self._standings[node_id].num_under_way += 1

    def note_over(self, node_id: NodeId) -> None:
        """A request is no longer at the node, however it ended."""
        standing = self._standings.get(node_id) or self._former[node_id]
        standing.num_under_way -= 1

    def note_success(self, node_id: NodeId) -> None:
        """A node has answered as it should."""
        standing = self._standings.get(node_id)
        if standing is None:
            return
        standing.num_in_a_row = 0
        standing.num_requests += 1
        standing.failure_rate *= _DECAY
        if standing.is_on_probation:
            standing.num_proven += 1
            if standing.num_proven >= _NUM_TO_PROVE:
                standing.is_on_probation = False
                standing.num_relapses = 0
                self._concerned.discard(node_id)

    def note_failure(self, node_id: NodeId, now_s: float) -> None:
        """A node has failed a request that was in order."""
        standing = self._standings[node_id]
        standing.num_in_a_row += 1
        standing.num_requests += 1
        standing.failure_rate = standing.failure_rate * _DECAY + (1 - _DECAY)
        is_failing = standing.num_in_a_row >= _MAX_FAILURES_IN_A_ROW
        if standing.is_on_probation or is_failing or self._is_outlier(standing):
            self._open(node_id, standing, now_s)

    def note_gone(self, node_id: NodeId) -> None:
        """The node went away without having said that it would."""
        self._put_on_probation(node_id, self._standings[node_id])

    def _open(self, node_id: NodeId, standing: _Standing, now_s: float) -> None:
        """Leaves the node alone for a while, unless too many are left alone already."""
        num_out = sum(self._standings[i].open_until_s > now_s for i in self._concerned)
        if standing.open_until_s <= now_s and num_out + 1 <= _MAX_SHARE_OUT * len(self._standings):
            pause_s = min(_FIRST_PAUSE_S * 2 ** min(standing.num_relapses, 16), _LONGEST_PAUSE_S)
            standing.open_until_s = now_s + pause_s
            standing.num_relapses += 1
        self._put_on_probation(node_id, standing)

    def _put_on_probation(self, node_id: NodeId, standing: _Standing) -> None:
        """Lets the node prove itself with a few requests."""
        standing.is_on_probation = True
        standing.num_in_a_row = standing.num_proven = 0
        self._concerned.add(node_id)

    def _is_outlier(self, standing: _Standing) -> bool:
        """True when the node fails often, and far more often than the others."""
        if standing.num_requests < _MIN_REQUESTS or standing.failure_rate < _OUTLIER_RATE:
            return False
        others = [other.failure_rate for other in self._standings.values() if other is not standing]
        usual = sum(others) / len(others) if others else 1.0
        return standing.failure_rate >= _OUTLIER_RATIO * usual
