"""Hot standby's role planner over a simulated fleet: reads what cores report, turns those it names.

Owns nothing of either: production code plans, cores change what their next report says. Read next:
`hot_standby.role_planner`, `benchmarks.split.simulation`.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from benchmarks.split.simulated_core import SimulatedCore
from contracts.fleet_view import FleetView, NodeView
from contracts.ids import BootId, GatewayId
from contracts.node_roles import NodeRole
from hot_standby.role_load import RoleLoads
from hot_standby.role_planner import RolePlanner
from hot_standby.settings import RoleSettings

_BOTH: Final = (NodeRole.PREFILL, NodeRole.DECODE)
_MAX_AGE_S: Final = 10.0
QUICK: Final = RoleSettings(
    carry_out=True, window_s=1.5, sustained_s=3.0, pause_s=7.5, relief_s=0.25
)
"""A fortieth of the usual times: 22 seconds of traffic stand for a quarter of an hour."""


class RoleTurner:
    """Turns nodes of one simulated region."""

    def __init__(self, settings: RoleSettings, max_running: int) -> None:
        """`max_running` are the places of each core."""
        self._loads = RoleLoads(settings.window_s)
        self._planner = RolePlanner(settings)
        self._max_running = max_running
        self.turned_s: list[float] = []
        """When a node was turned."""

    def turn(self, cores: Iterable[SimulatedCore], now_s: float) -> None:
        """One round: whoever is given a role has it from now on."""
        members = {core.node_id: core for core in cores}
        view = FleetView(
            gateway_id=GatewayId("g"),
            boot_id=BootId("1"),
            region=next(iter(members.values())).report().region,
            unix_ms=int(now_s * 1000),
            nodes=tuple(map(self._see, members.values())),
            demand=(),
            rules=(),
        )
        nodes = self._loads.read([view], _MAX_AGE_S, now_s)
        for node_id, wish in self._planner.wish(nodes, now_s).items():
            if wish.role is not members[node_id].role and not wish.is_suggestion:
                members[node_id].role = wish.role
                self.turned_s.append(now_s)

    def _see(self, core: SimulatedCore) -> NodeView:
        """The node as a gateway tells of it."""
        report = core.report()
        return NodeView(
            node_id=report.node_id,
            boot_id=report.boot_id,
            region=report.region,
            jurisdiction=report.jurisdiction,
            latency_s=0.0,
            is_connected=True,
            is_draining=False,
            report_age_s=0.0,
            loads=tuple(
                msgspec.structs.replace(load, max_running=self._max_running)
                for load in report.loads
            ),
            role=report.role,
            roles=_BOTH,
        )
