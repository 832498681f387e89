"""The production planner beside one real node: told what a gateway would tell it, once a period.

Owns when it plans; the planner, what it knows of demand and when a node is told again are those of
hot standby. Read next: `hot_standby.controller`, `benchmarks.standby.many_models`.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from benchmarks.standby.many_models import CrowdedNode
from contracts.fleet_view import FleetView, NodeView
from contracts.ids import BootId, GatewayId, ModelName
from contracts.placement import PlacementPlan
from gateway.routing.demand import DemandRecorder
from hot_standby.demand import DemandBook
from hot_standby.fleet_state import merge_views
from hot_standby.placement_planner import plan_placement
from hot_standby.plan_news import is_news
from hot_standby.settings import StandbySettings
from hot_standby.tiers import MoveSpeeds

PERIOD_S: Final = 1.0
_MAX_AGE_S: Final = 10.0


class PlannerBeside:
    """One planner, and the tally of requests that it reads."""

    def __init__(self, node: CrowdedNode) -> None:
        """Knows nothing of what will be asked."""
        self._node = node
        self._settings = StandbySettings()
        self._recorder = DemandRecorder()
        self._book = DemandBook(self._settings.demand)
        self._last: PlacementPlan | None = None
        self.num_plans = 0
        """Plans that were news to the node."""

    def note(self, model: ModelName) -> None:
        """A request for `model` has come."""
        self._recorder.note(model, None, time.time_ns() // 1_000_000)

    def plan(self) -> None:
        """One round."""
        view = self._view()
        if view is None:
            return
        now_s = view.unix_ms / 1000
        self._book.advance(now_s)
        self._book.absorb(view)
        state = merge_views([view], _MAX_AGE_S, MoveSpeeds(), {})
        demands = self._book.foretell(now_s)
        plans = plan_placement(state, demands, self._settings.planner, now_s, view.unix_ms)
        for plan in plans:
            if is_news(plan, [view]):
                self._node.links.place(plan)
                self._last = plan
                self.num_plans += 1

    def _view(self) -> FleetView | None:
        """What a gateway tells; None before the node has reported."""
        report = self._node.report
        if report is None:
            return None
        node = NodeView(
            node_id=report.node_id,
            boot_id=report.boot_id,
            region=report.region,
            jurisdiction=report.jurisdiction,
            latency_s=0.0,
            is_connected=True,
            is_draining=report.is_draining,
            report_age_s=0.0,
            placements=report.placements,
            loads=report.loads,
            memory=report.memory,
            plan=self._last,
        )
        return FleetView(
            gateway_id=GatewayId("gateway-1"),
            boot_id=BootId("1"),
            region=report.region,
            unix_ms=time.time_ns() // 1_000_000,
            nodes=(node,),
            demand=self._recorder.list_samples(),
            rules=(),
        )


@asynccontextmanager
async def run_planner(node: CrowdedNode) -> AsyncGenerator[PlannerBeside]:
    """A planner that plans once a period for as long as the context lasts."""
    planner = PlannerBeside(node)

    async def go_on() -> None:
        while True:
            planner.plan()
            await asyncio.sleep(PERIOD_S)

    planning = asyncio.create_task(go_on())
    try:
        yield planner
    finally:
        planning.cancel()
        result = (await asyncio.gather(planning, return_exceptions=True))[0]
        if isinstance(result, Exception):
            raise result
