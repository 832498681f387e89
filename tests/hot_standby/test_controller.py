"""Rounds of the controller against a real gateway before a scripted node."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from contracts.fleet_view import PlacementRule
from contracts.placement import MemoryUse, ModelPlacement, Tier
from contracts.settings import Secret
from hot_standby.controller import Controller, create_controller
from hot_standby.settings import GatewayAddress, StandbySettings
from tests.fixtures.free_port import find_port
from tests.gateway.conftest import database_template, gateway, node
from tests.gateway.running_gateway import RunningGateway, wait_until
from tests.gateway.scripted_node import MODEL, ScriptedNode

__all__ = ["database_template", "gateway", "node"]


@asynccontextmanager
async def run_controller(
    gateway: RunningGateway, folder: Path, *, token: str | None = None, first: str | None = None
) -> AsyncGenerator[Controller]:
    """A controller for the gateway, behind another one at `first` if given."""
    urls = [gateway.admin] if first is None else [first, gateway.admin]
    controller = create_controller(
        StandbySettings(
            gateways=tuple(GatewayAddress(url=url) for url in urls),
            operator_token=Secret(gateway.operator if token is None else token),
            state_file=folder / "days.json",
        )
    )
    try:
        yield controller
    finally:
        await controller.close()


async def report(node: ScriptedNode, tier: Tier) -> None:
    """The node says where its model is."""
    node.memory = MemoryUse(device_budget_bytes=1000, host_budget_bytes=1000)
    placed = ModelPlacement(name=MODEL, tier=tier, weights_bytes=500, kv_bytes=1, wake_s=1.0)
    node.placements = (placed,)
    await node.send_report()
    await asyncio.sleep(0.2)


async def test_a_plan_is_put_once_and_again_only_when_something_has_changed(
    gateway: RunningGateway, node: ScriptedNode, tmp_path: Path
) -> None:
    await report(node, Tier.HOST)
    async with run_controller(gateway, tmp_path) as controller:
        assert [await controller.act() for _ in range(3)] == [1, 0, 0]
        await wait_until(lambda: len(node.plans) == 1)
        await gateway.tenancy.set_placement_rule(PlacementRule(model=MODEL, tier=Tier.GPU))
        assert [await controller.act() for _ in range(2)] == [1, 0]
        await wait_until(lambda: len(node.plans) == 2)
        assert [plan.targets[0].tier for plan in node.plans] == [Tier.HOST, Tier.GPU]
        assert node.plans[1].number > node.plans[0].number
    async with run_controller(gateway, tmp_path) as later:
        assert await later.act() == 0  # another planner finds what this one has put


async def test_a_gateway_that_is_away_is_left_out_and_the_others_go_on(
    gateway: RunningGateway, node: ScriptedNode, tmp_path: Path
) -> None:
    await report(node, Tier.GPU)
    away = f"http://127.0.0.1:{find_port()}"
    async with run_controller(gateway, tmp_path, first=away) as controller:
        assert await controller.act() == 1


async def test_without_an_operator_s_credential_nothing_is_read_and_nothing_put(
    gateway: RunningGateway, node: ScriptedNode, tmp_path: Path
) -> None:
    await report(node, Tier.GPU)
    for token in ("wrong", gateway.tenant.api_token):
        async with run_controller(gateway, tmp_path, token=token) as controller:
            assert await controller.act() == 0
    assert node.plans == []
    async with run_controller(gateway, tmp_path) as controller:
        assert await controller.act() == 1  # the control


async def test_a_damaged_state_file_is_none(
    gateway: RunningGateway, node: ScriptedNode, tmp_path: Path
) -> None:
    await report(node, Tier.GPU)
    for content in (b"", b"[1]", b'[{"model": "@a/b"}]', b"\xff"):
        (tmp_path / "days.json").write_bytes(content)
        async with run_controller(gateway, tmp_path) as controller:
            await controller.act()
    assert (tmp_path / "days.json").read_bytes() == b"[]"
