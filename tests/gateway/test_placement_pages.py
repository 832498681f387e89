"""Where weights are, over the operators' port: what is read, what is passed on, what is kept."""

import time

import msgspec
import pytest

from contracts.fleet_view import PLACEMENT_PATH, PLANS_PATH, RULES_PATH, FleetView
from contracts.placement import MemoryUse, ModelPlacement, Tier
from tests.gateway.running_gateway import Reply, RunningGateway
from tests.gateway.scripted_node import MODEL, ScriptedNode

PLACED = ModelPlacement(name=MODEL, tier=Tier.HOST, weights_bytes=1000, kv_bytes=10, wake_s=0.5)


@pytest.fixture(autouse=True)
async def moving_node(gateway: RunningGateway, node: ScriptedNode) -> None:
    """The node says where its weights are."""
    node.placements, node.memory = (PLACED,), MemoryUse(device_budget_bytes=2000)
    await node.send_report()
    while (await read(gateway)).nodes[0].placements != (PLACED,):
        pass


async def ask(gateway: RunningGateway, method: str, path: str, body: object = None) -> Reply:
    """An operator's request."""
    return await gateway.send(
        method,
        path,
        None if body is None else msgspec.json.encode(body),
        api_token=gateway.operator,
        origin=gateway.admin,
    )


async def read(gateway: RunningGateway) -> FleetView:
    """The fleet as hot standby reads it."""
    reply = await ask(gateway, "GET", PLACEMENT_PATH)
    assert reply.status == 200
    return msgspec.convert(reply.json["result"], FleetView)


def make_plan(number: int, boot_id: str = "boot") -> dict[str, object]:
    """A plan that brings the model to the device."""
    return {
        "node_id": "node-1",
        "boot_id": boot_id,
        "number": number,
        "targets": [{"name": MODEL, "tier": "gpu"}],
        "eviction_order": [MODEL],
    }


async def wait_for_plan(node: ScriptedNode, number: int) -> None:
    """The node has so many plans."""
    deadline = time.monotonic() + 10
    while len(node.plans) < number:
        assert time.monotonic() < deadline
        await node.send_report()


async def test_the_fleet_its_memory_and_its_demand_are_shown_and_no_account(
    gateway: RunningGateway,
) -> None:
    for _ in range(3):
        await gateway.run({"prompt": "Hi"})
    await gateway.run({"prompt": "Hi"}, "@made/up/by-a-client")
    view = await read(gateway)
    (node,) = view.nodes
    assert (node.node_id, node.region, node.placements) == ("node-1", "weur", (PLACED,))
    assert node.memory.device_budget_bytes == 2000
    (sample,) = view.demand
    assert (sample.model, sample.num_arrivals, sum(sample.gaps)) == (MODEL, 3, 2)
    reply = await ask(gateway, "GET", PLACEMENT_PATH)
    assert gateway.tenant.account_id not in reply.body.decode()


async def test_a_plan_reaches_its_node_and_an_older_one_does_not(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    assert (await ask(gateway, "PUT", PLANS_PATH, make_plan(5))).status == 200
    await wait_for_plan(node, 1)
    for number, boot_id in ((5, "boot"), (4, "boot"), (9, "another")):
        assert (await ask(gateway, "PUT", PLANS_PATH, make_plan(number, boot_id))).status == 409
    assert (await ask(gateway, "PUT", PLANS_PATH, make_plan(6))).status == 200  # the control
    await wait_for_plan(node, 2)
    assert [plan.number for plan in node.plans] == [5, 6]
    assert (await read(gateway)).nodes[0].plan == node.plans[-1]


async def test_no_plan_can_be_the_last_one_for_ever(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    now_ms = int(time.time() * 1000)
    for number in (2**48 - 1, now_ms + 2 * 86_400_000):
        assert (await ask(gateway, "PUT", PLANS_PATH, make_plan(number))).status == 409
    assert (await ask(gateway, "PUT", PLANS_PATH, make_plan(now_ms))).status == 200  # the control
    rule = {"model": MODEL, "tier": "gpu"}  # its plan has a number beyond the last
    assert (await ask(gateway, "PUT", RULES_PATH, rule)).status == 200
    await wait_for_plan(node, 2)
    assert now_ms <= node.plans[0].number < node.plans[1].number < 2**48


async def test_a_node_that_moves_nothing_gets_no_plan(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    node.placements = ()
    await node.send_report()
    while (await read(gateway)).nodes[0].placements:
        pass
    assert (await ask(gateway, "PUT", PLANS_PATH, make_plan(1))).status == 409


async def test_a_node_that_is_not_there_is_said_to_be_so(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    unknown = make_plan(1) | {"node_id": "node-9"}
    assert (await ask(gateway, "PUT", PLANS_PATH, unknown)).status == 404
    await node.stop()
    while (await read(gateway)).nodes[0].is_connected:
        pass
    assert (await ask(gateway, "PUT", PLANS_PATH, make_plan(1))).status == 503
    await node.start()


async def test_a_rule_is_kept_and_amends_the_node_s_plan_without_any_planner(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    pin = {"model": MODEL, "tier": "gpu"}
    assert (await ask(gateway, "PUT", RULES_PATH, pin)).status == 200
    await wait_for_plan(node, 1)
    (target,) = node.plans[0].targets
    assert (target.tier, target.is_pinned) == (Tier.GPU, True)
    assert node.plans[0].eviction_order[-1] == MODEL
    (rule,) = (await read(gateway)).rules
    assert rule.tier is Tier.GPU
    away = {"model": MODEL, "tier": "disk", "for_s": 60}
    assert (await ask(gateway, "PUT", RULES_PATH, away)).status == 200
    await wait_for_plan(node, 2)
    assert node.plans[1].number > node.plans[0].number
    assert node.plans[1].targets[0].tier is Tier.DISK
    (rule,) = (await read(gateway)).rules
    assert rule.until_unix_s is not None
    assert 0 < rule.until_unix_s - time.time() <= 60
    ended = f"{RULES_PATH}?model={MODEL}"
    assert (await ask(gateway, "DELETE", ended)).status == 200
    await wait_for_plan(node, 3)
    assert not node.plans[2].targets[0].is_pinned
    assert (await ask(gateway, "DELETE", ended)).status == 404
    assert (await read(gateway)).rules == ()
