"""The composition root of hot standby: reads the fleet, plans, and puts the plans, round by round.

Reading `create_controller` is reading the architecture. Nodes go on alone while this is away; what
it needs to know it reads again from the gateways when it is back. Must not contain any planning.
Read next: `hot_standby.placement_planner`, `hot_standby.role_plans`,
`hot_standby.pool_control`.
"""

import asyncio
import signal
import time
from collections.abc import Callable
from typing import Final

import msgspec
import structlog

from contracts.fleet_view import FleetView
from contracts.placement import PlacementPlan
from hot_standby.demand import SLOT_S, DemandBook
from hot_standby.fleet_state import merge_views
from hot_standby.placement_planner import plan_placement
from hot_standby.plan_news import is_news
from hot_standby.pool_control import GatewayControl, PoolControl, create_pool_control
from hot_standby.role_plans import RolePlans
from hot_standby.settings import StandbySettings
from hot_standby.state_file import StateFile
from hot_standby.tiers import MoveSpeeds
from telemetry.log_output import configure_log

log = structlog.get_logger(__name__)
STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Controller:
    """One planner's process."""

    def __init__(
        self,
        settings: StandbySettings,
        pool: PoolControl,
        book: DemandBook,
        state_file: StateFile,
        unix_s: Callable[[], float],
    ) -> None:
        """Knows what the state file knows."""
        self._settings = settings
        self._pool = pool
        self._book = book
        self._state_file = state_file
        self._unix_s = unix_s
        self._speeds = MoveSpeeds(**msgspec.structs.asdict(settings.moves))
        self._classes = {model.name: model.service_class for model in settings.models}
        self._roles = RolePlans(settings.roles, settings.max_report_age_s)
        self._has_read = False
        self._slot = int(unix_s() // SLOT_S)
        book.load(state_file.read())

    async def run(self) -> None:
        """Plans for ever."""
        while True:
            began_s = time.monotonic()
            try:
                await self.act()
            except Exception as error:  # a round that fails must not be the last one
                log.error("round_failed", error=type(error).__name__, message=str(error))
            await asyncio.sleep(max(self._settings.period_s - (time.monotonic() - began_s), 0.01))

    async def act(self) -> int:
        """One round; how many plans were put."""
        read = await self._pool.read()
        if not read:
            return 0
        views = [view for _, view in read]
        if not self._has_read:
            self._has_read = True
            log.info("fleet_read", num_nodes=len(views[0].nodes), num_rules=len(views[0].rules))
        # Gateways date their samples: their clock counts, and a node's plans outlive this process.
        now_s = max(view.unix_ms for view in views) / 1000
        plans = self._plan(views, now_s)
        num_put = 0
        for plan in plans:
            if is_news(plan, views):
                num_put += await self._put(plan, read)
        self._keep_days()
        if self._settings.alive_file is not None:
            self._settings.alive_file.touch()
        return num_put

    async def close(self) -> None:
        """Keeps what is known of days; nothing may follow."""
        self._state_file.write(self._book.dump())
        await self._pool.close()

    def _plan(self, views: list[FleetView], now_s: float) -> tuple[PlacementPlan, ...]:
        """What every node should do."""
        self._book.advance(now_s)
        for view in views:
            self._book.absorb(view)
        state = merge_views(views, self._settings.max_report_age_s, self._speeds, self._classes)
        known = [node.plan.number for view in views for node in view.nodes if node.plan]
        number = max(int(now_s * 1000), *(number + 1 for number in known), 1)
        demands = self._book.foretell(now_s)
        plans = plan_placement(state, demands, self._settings.planner, now_s, number)
        return self._roles.add_to(plans, views, now_s, number)

    async def _put(self, plan: PlacementPlan, read: list[tuple[GatewayControl, FleetView]]) -> bool:
        """Through a gateway that is connected to the node, and knows of roles if the plan does."""
        through = [
            gateway
            for gateway, view in read
            if any(
                node.node_id == plan.node_id
                and node.is_connected
                and (plan.role is None or plan.role.role in node.roles)
                for node in view.nodes
            )
        ]
        is_put = await self._pool.put(plan, through)
        if is_put:
            log.info("plan_put", node_id=plan.node_id, number=plan.number)
        return is_put

    def _keep_days(self) -> None:
        """Writes the profile of days when another slot of the day has begun."""
        slot = int(self._unix_s() // SLOT_S)
        if slot != self._slot:
            self._slot = slot
            self._state_file.write(self._book.dump())


def create_controller(settings: StandbySettings) -> Controller:
    """Every part, put together; nothing has been asked yet."""
    return Controller(
        settings,
        create_pool_control(settings.gateways, settings.operator_token, settings.timeout_s),
        DemandBook(settings.demand),
        StateFile(settings.state_file),
        time.time,
    )


def run_controller(settings: StandbySettings) -> None:
    """Plans until SIGINT or SIGTERM."""
    configure_log(settings.log)
    asyncio.run(_run(settings))


async def _run(settings: StandbySettings) -> None:
    """One process's life."""
    controller = create_controller(settings)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop.set)
    log.info("standby_started", gateways=[gateway.url for gateway in settings.gateways])
    planning = asyncio.create_task(controller.run())
    await stop.wait()
    planning.cancel()
    await asyncio.gather(planning, return_exceptions=True)
    await controller.close()
    log.info("standby_stopped")
