"""Plans with nodes' roles in them, round by round, and a line of the log for each change.

Owns what joins loads, role planner and plans; must not know gateways nor where weights should be.
Read next: `hot_standby.role_planner`.
"""

from collections.abc import Iterable

import msgspec
import structlog

from contracts.fleet_view import FleetView
from contracts.ids import NodeId
from contracts.node_roles import NodeRole
from contracts.placement import PlacementPlan
from hot_standby.role_load import RoleLoads, RoleNode
from hot_standby.role_planner import RolePlanner
from hot_standby.settings import RoleSettings

log = structlog.get_logger(__name__)


class RolePlans:
    """What nodes should be there for."""

    def __init__(self, settings: RoleSettings, max_report_age_s: float) -> None:
        """Nodes that nobody has heard of for `max_report_age_s` are left alone."""
        self._settings = settings
        self._max_report_age_s = max_report_age_s
        self._loads = RoleLoads(settings.window_s)
        self._planner = RolePlanner(settings)
        self._told: set[tuple[NodeId, NodeRole]] = set()

    def add_to(
        self,
        plans: Iterable[PlacementPlan],
        views: Iterable[FleetView],
        now_s: float,
        number: int,
    ) -> tuple[PlacementPlan, ...]:
        """The plans with roles in them; a node that moves no weights gets one for that.

        Units: `now_s` in seconds since 1970.
        """
        nodes = self._loads.read(views, self._max_report_age_s, now_s)
        wishes = self._planner.wish(nodes, now_s)
        self._tell()
        planned = {plan.node_id: plan for plan in plans}
        for node in nodes:
            if node.node_id in wishes:
                plan = planned.get(node.node_id) or _create_empty(node, number)
                role = wishes[node.node_id]
                planned[node.node_id] = msgspec.structs.replace(plan, role=role)
        return tuple(planned.values())

    def _tell(self) -> None:
        """A line for each change that the round before has not told of."""
        event = "role_given" if self._settings.carry_out else "role_suggested"
        for change in self._planner.changes:
            if (change.node_id, change.role) not in self._told:
                log.info(
                    event,
                    node_id=change.node_id,
                    role=change.role,
                    region=change.pool.region,
                    load_before=round(change.load_before, 2),
                    load_after=round(change.load_after, 2),
                )
        self._told = {(change.node_id, change.role) for change in self._planner.changes}


def _create_empty(node: RoleNode, number: int) -> PlacementPlan:
    """A plan for a node whose weights stay where they are."""
    return PlacementPlan(node_id=node.node_id, boot_id=node.boot_id, number=number, targets=())
