"""Rounds of the controller against a real gateway before a scripted node."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from contracts.fleet_view import NODES_PATH, PLANS_PATH, RULES_PATH, PlacementRule
from contracts.node_roles import NodeRole, RoleWish
from contracts.placement import MemoryUse, ModelPlacement, Tier
from contracts.settings import Secret
from hot_standby import plan_news
from hot_standby.controller import Controller, create_controller
from hot_standby.settings import GatewayAddress, RoleSettings, StandbySettings
from tests.fixtures.free_port import find_port
from tests.gateway.conftest import database_template, gateway, node
from tests.gateway.running_gateway import RunningGateway, run_gateway, wait_until
from tests.gateway.scripted_node import MODEL, ScriptedNode

__all__ = ["database_template", "gateway", "node"]
ACCOUNTS_PATH = "/operator/v1/accounts"


@asynccontextmanager
async def run_controller(
    gateway: RunningGateway,
    folder: Path,
    *,
    token: str | None = None,
    first: str | None = None,
    roles: RoleSettings | None = None,
) -> AsyncGenerator[Controller]:
    """A controller for the gateway, behind another one at `first` if given."""
    urls = [gateway.admin] if first is None else [first, gateway.admin]
    controller = create_controller(
        StandbySettings(
            gateways=tuple(GatewayAddress(url=url) for url in urls),
            operator_token=Secret(gateway.operator if token is None else token),
            state_file=folder / "days.json",
            roles=roles or RoleSettings(),
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


async def test_a_node_that_has_strayed_from_its_plan_is_told_again(
    gateway: RunningGateway, node: ScriptedNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await report(node, Tier.HOST)
    await gateway.tenancy.set_placement_rule(PlacementRule(model=MODEL, tier=Tier.GPU))
    async with run_controller(gateway, tmp_path) as controller:
        assert [await controller.act() for _ in range(2)] == [1, 0]
        monkeypatch.setattr(plan_news, "REMIND_MS", 0)
        assert await controller.act() == 1
        await report(node, Tier.GPU)
        assert await controller.act() == 0  # the control


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


async def test_a_credential_of_its_own_is_enough_to_plan_and_for_nothing_else(
    database_template: Path, node: ScriptedNode, tmp_path: Path
) -> None:
    credential, standby = "5" * 32, {"credential": "5" * 32}
    async with run_gateway(tmp_path, database_template, [node], standby=standby) as gateway:
        await report(node, Tier.HOST)
        async with run_controller(gateway, tmp_path, token=credential) as controller:
            assert await controller.act() == 1
        for method, path in (("GET", ACCOUNTS_PATH), ("DELETE", f"{RULES_PATH}?model={MODEL}")):
            sent = {"origin": gateway.admin, "api_token": credential}
            assert (await gateway.send(method, path, **sent)).status == 401
            sent["api_token"] = gateway.operator  # the control
            assert (await gateway.send(method, path, **sent)).status in (200, 404)


async def test_a_damaged_state_file_is_none(
    gateway: RunningGateway, node: ScriptedNode, tmp_path: Path
) -> None:
    await report(node, Tier.GPU)
    for content in (b"", b"[1]", b'[{"model": "@a/b"}]', b"\xff"):
        (tmp_path / "days.json").write_bytes(content)
        async with run_controller(gateway, tmp_path) as controller:
            await controller.act()
    assert (tmp_path / "days.json").read_bytes() == b"[]"


BOTH = (NodeRole.PREFILL, NodeRole.DECODE)


async def create_split_pool(
    gateway: RunningGateway, nodes: list[ScriptedNode], *roles: NodeRole
) -> None:
    """Nodes of these roles, which move no weights; those for prompts have far too many of them."""
    for member, role in zip(nodes, roles, strict=True):
        member.role, member.roles, member.placements = role, BOTH, ()
        member.num_queued_tokens = 10**6 if role is NodeRole.PREFILL else 0
        await member.send_report()
    fleet = gateway.gateway._pool.fleet
    await wait_until(
        lambda: all(one.roles and not one.placements for one in fleet.roster.snapshots)
    )


@pytest.mark.parametrize("carry_out", [False, True])
async def test_a_pool_with_too_many_prompts_is_told_so_or_turned(
    database_template: Path, tmp_path: Path, carry_out: bool
) -> None:
    async with AsyncExitStack() as stack:
        nodes = [ScriptedNode(f"n{number}") for number in range(3)]
        for member in nodes:
            await member.start()
            stack.push_async_callback(member.stop)
        gateway = await stack.enter_async_context(run_gateway(tmp_path, database_template, nodes))
        await create_split_pool(gateway, nodes, NodeRole.PREFILL, NodeRole.DECODE, NodeRole.DECODE)
        roles = RoleSettings(carry_out=carry_out, sustained_s=0.3, window_s=0.1, pause_s=60)
        controller = await stack.enter_async_context(run_controller(gateway, tmp_path, roles=roles))
        assert await controller.act() == 3  # what they are, to each
        await asyncio.sleep(0.4)
        assert await controller.act() == 1
        await wait_until(lambda: sum(len(member.plans) for member in nodes) == 4)
        (turned,) = [member for member in nodes if len(member.plans) == 2]
        assert turned.role is NodeRole.DECODE
        wish = RoleWish(role=NodeRole.PREFILL, is_suggestion=not carry_out)
        assert turned.plans[1].role == wish
        if carry_out:
            turned.role = NodeRole.PREFILL
        else:
            turned.suggested_role = NodeRole.PREFILL
        await turned.send_report()
        await asyncio.sleep(0.3)
        assert [await controller.act() for _ in range(3)] == [0, 0, 0]
        sent = {"api_token": gateway.operator, "origin": gateway.admin}
        reply = await gateway.send("GET", NODES_PATH, **sent)
        told = {one["node_id"]: one.get("suggested_role") for one in reply.json["result"]}
        assert told[turned.node_id] == (None if carry_out else "prefill")
        metrics = await gateway.send("GET", "/metrics", **sent)
        line = f'hearth_gateway_role_suggested{{node="{turned.node_id}"}} '
        assert f"{line}{0.0 if carry_out else 1.0}" in metrics.body.decode()


async def test_a_role_that_a_node_may_not_take_is_refused_at_the_gateway(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    await report(node, Tier.GPU)
    plan: dict[str, object] = {
        "node_id": node.node_id,
        "boot_id": "boot",
        "number": 1,
        "targets": [],
        "role": {"role": "prefill"},
    }
    sent = {"api_token": gateway.operator, "origin": gateway.admin}
    reply = await gateway.send("PUT", PLANS_PATH, msgspec.json.encode(plan), **sent)
    assert reply.status == 409
    assert "do not let it be there for prefill" in reply.body.decode()
    node.roles = BOTH
    await report(node, Tier.GPU)
    reply = await gateway.send("PUT", PLANS_PATH, msgspec.json.encode(plan), **sent)
    assert reply.status == 200  # the control
    plan["role"] = {"role": "printer"}
    reply = await gateway.send("PUT", PLANS_PATH, msgspec.json.encode(plan), **sent)
    assert reply.status == 400
