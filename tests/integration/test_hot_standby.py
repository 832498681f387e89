"""`hearth standby` as a process before a real gateway and a real node that holds one of two models.

It is killed and comes back: the node goes on alone, and the plans go on where they were.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from contracts.fleet_view import PLACEMENT_PATH, RULES_PATH, FleetView, NodeView
from contracts.ids import ModelName, NodeId
from contracts.placement import Tier
from migrations.upgrade import upgrade_database
from tests.fixtures.node_process import MODEL, ROOT, run_node_process
from tests.fixtures.random_checkpoint import write_random_checkpoint
from tests.gateway.running_gateway import RunningGateway, run_gateway, wait_until, wait_until_async

pytestmark = pytest.mark.slow

OTHER = ModelName("@test/other")
ROOM = """
[placement]
device_bytes = 70000000
host_bytes = 8000000
turn_s = 0.0
[[models]]
name = "{other}"
path = "{path}"
"""
"""One model with its 64 MiB of KV memory, and the other asleep."""


@dataclass
class RealNode:
    """A node as `run_gateway` wants to know it."""

    node_id: NodeId
    url: str
    pair_key: bytes


@pytest.fixture
def template(tmp_path: Path) -> Path:
    """An empty database."""
    path = tmp_path / "template.db"
    upgrade_database(f"sqlite+aiosqlite:///{path}")
    return path


@pytest.fixture
async def gateway(tmp_path: Path, template: Path) -> AsyncGenerator[RunningGateway]:
    """A gateway before the node."""
    first, second = tmp_path / "first", tmp_path / "second"
    write_random_checkpoint(first, seed=1)
    write_random_checkpoint(second, seed=2)
    room = ROOM.format(other=OTHER, path=second)
    with run_node_process(tmp_path, first, more_settings=room) as (_, address):
        node = RealNode(NodeId("test-node"), address.url.replace("http", "ws"), address.pair_key)
        async with run_gateway(tmp_path, template, [node]) as running:
            await running.tenancy.set_account_metered(running.tenant.account_id, False)
            yield running


@contextmanager
def run_standby(gateway: RunningGateway, folder: Path) -> "Iterator[subprocess.Popen[bytes]]":
    """The planner's process, killed at the end unless it has gone."""
    config = folder / "standby.toml"
    config.write_text(
        f'period_s = 0.1\nstate_file = "{folder / "days.json"}"\n'
        f'[[gateways]]\nurl = "{gateway.admin}"\n'
    )
    token = folder / "operator_token"
    token.write_text(gateway.operator)
    with (folder / "standby.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "cli", "standby", "--config", str(config)],
            cwd=ROOT,
            stderr=log,
            env=os.environ | {"HEARTH_STANDBY__OPERATOR_TOKEN_FILE": str(token)},
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(10)


async def read_node(gateway: RunningGateway) -> NodeView:
    """The node as operators see it."""
    reply = await gateway.send(
        "GET", PLACEMENT_PATH, api_token=gateway.operator, origin=gateway.admin
    )
    return msgspec.convert(reply.json["result"], FleetView).nodes[0]


async def set_rule(gateway: RunningGateway, rule: dict[str, Any]) -> None:
    """As `hearth models warm` does, without the time that a command takes to start and end."""
    body = msgspec.json.encode(rule)
    reply = await gateway.send(
        "PUT", RULES_PATH, body, api_token=gateway.operator, origin=gateway.admin
    )
    assert reply.status == 200


async def find_tier(gateway: RunningGateway, model: ModelName) -> Tier:
    """Where the model's weights are."""
    node = await read_node(gateway)
    return next(placed.tier for placed in node.placements if placed.name == model)


async def find_target(gateway: RunningGateway, model: ModelName) -> Tier | None:
    """Where the last plan wants it."""
    plan = (await read_node(gateway)).plan
    targets = () if plan is None else plan.targets
    return next((target.tier for target in targets if target.name == model), None)


async def run_command(gateway: RunningGateway, *words: str) -> str:
    """What `hearth models …` prints; it must succeed. The gateway serves it meanwhile."""
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "cli", "models", *words, "--admin-url", gateway.admin],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"HEARTH_OPERATOR_TOKEN": gateway.operator},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


async def ask(gateway: RunningGateway, model: ModelName) -> int:
    """The status of one short answer."""
    body: dict[str, Any] = {"prompt": "Hi", "max_tokens": 2}
    return (await gateway.run(body, model)).status


async def test_plans_move_weights_the_node_goes_on_alone_and_a_new_planner_takes_over(
    gateway: RunningGateway, tmp_path: Path
) -> None:
    assert await find_tier(gateway, OTHER) is not Tier.GPU
    with run_standby(gateway, tmp_path) as process:
        await wait_until_async(lambda: has_plan(gateway), 30)
        await run_command(gateway, "pin", OTHER)
        await wait_until_async(lambda: is_in(gateway, OTHER, Tier.GPU), 30)
        await wait_until_async(lambda: is_in(gateway, MODEL, Tier.HOST), 30)  # room for one
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    last = (await read_node(gateway)).plan
    assert last is not None

    assert await ask(gateway, OTHER) == 200  # the planner is away
    await run_command(gateway, "unpin", OTHER)
    await run_command(gateway, "warm", MODEL, "--for", "600")  # a rule needs no planner
    await wait_until_async(lambda: is_in(gateway, MODEL, Tier.GPU), 30)
    assert await ask(gateway, OTHER) == 200  # woken by the node itself
    status = await run_command(gateway, "status", "--json")
    (row,) = (each for each in msgspec.json.decode(status) if each["model"] == OTHER)
    assert row["num_asked"] >= 2
    assert row["num_wakes"] >= 1
    table = await run_command(gateway, "status")
    assert "TIER" in table
    assert "device" in table

    with run_standby(gateway, tmp_path) as process:
        await wait_until(lambda: count_started(tmp_path) == 2, 30)
        # It keeps the rule that it finds.
        await wait_until_async(lambda: wants(gateway, MODEL, Tier.GPU), 30)
        await set_rule(gateway, {"model": OTHER, "tier": "gpu", "for_s": 3})
        await wait_until_async(lambda: wants(gateway, OTHER, Tier.GPU), 30)
        await wait_until_async(lambda: wants(gateway, MODEL, Tier.GPU), 30)  # it ends rules
        await run_command(gateway, "evict", OTHER, "--for", "600")
        await wait_until_async(lambda: wants(gateway, OTHER, Tier.DISK), 30)
        newest = (await read_node(gateway)).plan
        assert newest is not None
        assert newest.number > last.number
        process.terminate()
        assert process.wait(20) == 0
    assert (tmp_path / "days.json").is_file()


def count_started(folder: Path) -> int:
    """Planners that have read the fleet so far."""
    return (folder / "standby.log").read_text().count('"fleet_read"')


async def has_plan(gateway: RunningGateway) -> bool:
    """True once the node has any."""
    return (await read_node(gateway)).plan is not None


async def is_in(gateway: RunningGateway, model: ModelName, tier: Tier) -> bool:
    """True once the model is there."""
    return await find_tier(gateway, model) is tier


async def wants(gateway: RunningGateway, model: ModelName, tier: Tier) -> bool:
    """True once the last plan says so."""
    return await find_target(gateway, model) is tier
