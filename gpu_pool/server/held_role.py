"""The role that a node holds: its settings' until a planner gives it another of those it may take.

Owns which plans are followed; must not know reports or streams. A node that starts again begins
with its settings' role. Read next: `node_status`, `contracts.node_roles`.
"""

import structlog

from contracts.node_roles import NodeRole
from contracts.placement import PlacementPlan


class HeldRole:
    """What the node is there for at the moment."""

    def __init__(
        self, role: NodeRole = NodeRole.MIXED, may_take: tuple[NodeRole, ...] = ()
    ) -> None:
        """Nothing is suggested; without `may_take` no plan changes anything."""
        self.may_take = may_take
        self.current = role
        self.suggested: NodeRole | None = None
        """Another role that a planner thinks better, and leaves to operators."""
        self._plan_number = -1
        self._log = structlog.get_logger()

    def take_plan(self, plan: PlacementPlan) -> bool:
        """True when it has changed something; plans that a newer one has overtaken do not."""
        wish = plan.role
        if wish is None or plan.number <= self._plan_number or wish.role not in self.may_take:
            return False
        self._plan_number = plan.number
        before = self.current, self.suggested
        if not wish.is_suggestion:
            self.current = wish.role
        self.suggested = wish.role if wish.role is not self.current else None
        if self.current is not before[0]:
            self._log.info("the node has another role", role=self.current, before=before[0])
        elif self.suggested is not None and self.suggested is not before[1]:
            self._log.info("another role is suggested", role=self.current, better=self.suggested)
        return (self.current, self.suggested) != before
