"""How nodes have done lately: a breaker and a probation for each, and a bound on how many go.

A node that fails several requests in a row, or far more than the others, is left alone for a while
that doubles with each relapse; then it is on probation until enough have gone well. Never more than
half of the nodes are out at the same time: when most fail, the fault is not theirs. Pure. Must not
know whose requests they are. Read next: `gateway.routing.node_health` (which has these).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from contracts.ids import NodeId

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
_MAX_FAILURES_IN_A_ROW: Final = 5
_NUM_ON_PROBATION: Final = 2
"""Requests at a time, to begin with."""
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
_GOOD_RATE: Final = 0.02


def find_pause_s(num_before: int) -> float:
    """How long a node is left alone that was so many times before."""
    return min(FIRST_PAUSE_S * 2 ** min(num_before, 16), LONGEST_PAUSE_S)


@dataclass(slots=True)
class Standing:
    """One node's."""

    num_in_a_row: int = 0
    num_proven: int = 0
    num_begun: int = 0
    """Answers that have begun since the probation did."""
    num_relapses: int = 0
    failure_rate: float = 0.0
    """Of its latest requests, older ones counting less."""
    num_requests: int = 0
    open_until_s: float = float("-inf")
    """When the breaker closes, or has; where it was not allowed to open, when it should have."""
    is_on_probation: bool = False

    @property
    def most_under_way(self) -> int:
        """Requests that the node may have at a time while it is on probation.

        Each answer that begins makes room for one more, since long ones would hold the node there
        for as long as they last. A node that takes requests and fails them later begins as well:
        the more often it has relapsed, the more of them it takes.
        """
        return _NUM_ON_PROBATION + self.num_begun // (1 + self.num_relapses)

    @property
    def is_good(self) -> bool:
        """True when next to nothing is held against the node."""
        return not (self.is_on_probation or self.num_in_a_row or self.failure_rate > _GOOD_RATE)


class Standings:
    """Nodes that are not listed are in good standing."""

    def __init__(self) -> None:
        """Nobody has failed anything."""
        self.by_node: Final[dict[NodeId, Standing]] = {}
        self.concerned: Final[set[NodeId]] = set()
        """Those whose breaker is open or who are on probation."""

    def list_concerned(self) -> Iterator[tuple[NodeId, Standing]]:
        """Nodes that get few requests or none."""
        for node_id in self.concerned:
            yield node_id, self.by_node[node_id]

    def forgive(self, since_s: float) -> None:
        """Nodes on probation that have been tried again by then are in order."""
        for node_id, standing in tuple(self.list_concerned()):
            if standing.open_until_s <= since_s:
                standing.is_on_probation = False
                self.concerned.discard(node_id)

    def admit(self, node_id: NodeId, standing: Standing) -> None:
        """The node is here, and its past with it."""
        self.by_node[node_id] = standing
        if standing.is_on_probation:
            self.concerned.add(node_id)

    def dismiss(self, node_id: NodeId) -> Standing | None:
        """The node is here no more; what it leaves, if anything."""
        self.concerned.discard(node_id)
        return self.by_node.pop(node_id, None)

    def note_begun(self, node_id: NodeId) -> None:
        """The answer to a request has begun."""
        standing = self.by_node.get(node_id)
        if standing is not None and standing.is_on_probation:
            standing.num_begun += 1

    def note_success(self, node_id: NodeId) -> None:
        """A node has answered as it should."""
        standing = self.by_node.get(node_id)
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
                self.concerned.discard(node_id)

    def note_failure(self, node_id: NodeId, now_s: float, num_nodes: int) -> None:
        """A node of so many has failed a request that was in order."""
        standing = self.by_node.setdefault(node_id, Standing())
        standing.num_in_a_row += 1
        standing.num_requests += 1
        standing.failure_rate = standing.failure_rate * _DECAY + (1 - _DECAY)
        is_failing = standing.num_in_a_row >= _MAX_FAILURES_IN_A_ROW
        if standing.is_on_probation or is_failing or self._is_outlier(standing, num_nodes):
            self._open(node_id, standing, now_s, num_nodes)

    def put_on_probation(self, node_id: NodeId) -> None:
        """Lets the node prove itself with a few requests."""
        standing = self.by_node[node_id]
        standing.is_on_probation = True
        standing.num_in_a_row = standing.num_proven = standing.num_begun = 0
        self.concerned.add(node_id)

    def _open(self, node_id: NodeId, standing: Standing, now_s: float, num_nodes: int) -> None:
        """Leaves the node alone for a while, unless too many are left alone already."""
        num_out = sum(other.open_until_s > now_s for _, other in self.list_concerned())
        if standing.open_until_s <= now_s and num_out + 1 <= _MAX_SHARE_OUT * num_nodes:
            standing.open_until_s = now_s + find_pause_s(standing.num_relapses)
            standing.num_relapses += 1
        standing.open_until_s = max(standing.open_until_s, now_s)
        self.put_on_probation(node_id)

    def _is_outlier(self, standing: Standing, num_nodes: int) -> bool:
        """True when the node fails often, and far more often than the others."""
        if standing.num_requests < _MIN_REQUESTS or standing.failure_rate < _OUTLIER_RATE:
            return False
        rates = sum(other.failure_rate for other in self.by_node.values()) - standing.failure_rate
        usual = rates / (num_nodes - 1) if num_nodes > 1 else 1.0
        return standing.failure_rate >= _OUTLIER_RATIO * usual
