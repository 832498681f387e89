"""Whether this gateway's own clock is wrong: most nodes take its grants for passed.

A node that does so alone has a wrong clock itself, and is left for others. Where most of them do at
once, and none takes anything, they are right: to leave them alone would help nobody. Pure: time is
handed in, by the monotonic clock. Read next: `gateway.attempts`, `gateway.attempt_grant`.
"""

from typing import Final

from contracts.ids import NodeId

_MEMORY_S: Final = 60.0
_FEWEST: Final = 2
"""Nodes that must agree: of two clocks nobody knows which is right."""


class OwnClock:
    """What nodes say of it."""

    def __init__(self) -> None:
        """Nobody has said anything."""
        self._late_s: dict[NodeId, float] = {}

    def note_late(self, node_id: NodeId, now_s: float) -> None:
        """The node has taken a grant for passed that is not, by this clock."""
        self._late_s[node_id] = now_s

    def forget(self, node_id: NodeId) -> None:
        """What the node said is of no account any more."""
        self._late_s.pop(node_id, None)

    def note_taken(self) -> None:
        """Some node has taken a grant."""
        self._late_s.clear()

    def is_doubted(self, node_ids: frozenset[NodeId], now_s: float) -> bool:
        """True when most of these nodes say that the clock is behind."""
        num_late = self._count_late(node_ids, now_s)
        return num_late >= _FEWEST and 2 * num_late > len(node_ids)

    def is_refuted(self, node_ids: frozenset[NodeId], now_s: float) -> bool:
        """True when all of these nodes say so, so that no other one need be asked."""
        return _FEWEST <= len(node_ids) == self._count_late(node_ids, now_s)

    def _count_late(self, node_ids: frozenset[NodeId], now_s: float) -> int:
        """How many of these nodes have lately said so."""
        since_s = now_s - _MEMORY_S
        return sum(self._late_s.get(node_id, since_s) > since_s for node_id in node_ids)
