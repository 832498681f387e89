"""Two gateways before two node processes: what one has sent, the other finds by what nodes say.

Both have the same accounts. The prompts are texts, which nothing but their beginnings tells apart.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from contracts.ids import ModelName
from gpu_pool.server.recent_sessions import TOLD_S
from migrations.upgrade import upgrade_database
from tenancy.encryption.key_ring_file import load_or_create_key_ring
from tests.fixtures.fleet_node import FleetNode, create_fleet_node
from tests.fixtures.random_checkpoint import write_random_checkpoint
from tests.fixtures.redis_server import RedisServer, needs_redis, run_redis
from tests.gateway.running_gateway import (
    RunningGateway,
    Tenant,
    run_gateway,
    wait_until,
    wait_until_async,
)
from tests.integration.account_client import read_cached_tokens

pytestmark = [needs_redis, pytest.mark.timeout(300)]

MODEL: Final = ModelName("@hearth/tests/random-llama")
NAMES: Final = ("first", "second")
NUM_PROMPTS: Final = 10


def write_prompt(number: int) -> str:
    """A text of four kilobytes that no other begins like."""
    return f"{number:04} " * 800


def create_nodes(folder: Path) -> list[FleetNode]:
    """Two that are not started."""
    checkpoint = write_random_checkpoint(folder / "checkpoint")
    settings = f"""[[models]]
name = "{MODEL}"
path = "{checkpoint}"
[engine]
kv_bytes = 33554432
num_threads = 1
"""
    return [create_fleet_node(folder, name, ("cli", "node"), settings) for name in NAMES]


@asynccontextmanager
async def run_one_of_several(
    folder: Path, name: str, nodes: Iterable[FleetNode], redis: RedisServer
) -> AsyncGenerator[RunningGateway]:
    """A gateway with the same accounts as the others, once it has both nodes."""
    own, database = folder / name, folder / "hearth.db"
    own.mkdir()
    async with run_gateway(
        own,
        f"sqlite+aiosqlite:///{database}",
        nodes,
        is_awaited=False,
        key_ring={"file": str(folder / "key_ring.json")},
        shared_limits={"url": redis.url, "budget_s": 10.0},
    ) as gateway:
        await wait_until_async(lambda: has_both(gateway), timeout_s=120)
        yield gateway


async def has_both(gateway: RunningGateway) -> bool:
    """True when both nodes can serve."""
    reply = await gateway.send(
        "GET", "/operator/v1/nodes", api_token=gateway.operator, origin=gateway.admin
    )
    loads = [load for node in reply.json["result"] for load in node["loads"]]
    return sum(load["is_ready"] for load in loads) == len(NAMES)


def count_known(gateway: RunningGateway) -> int:
    """How many beginnings of prompts the gateway could find."""
    return gateway.gateway._pool.fleet.locality._index.num_keys


async def ask(gateway: RunningGateway, prompt: str, tenant: Tenant) -> tuple[str, int]:
    """The node that answered, and how many tokens of the prompt it had."""
    form = {"prompt": prompt, "max_tokens": 2, "ignore_eos": True, "temperature": 0}
    reply = await gateway.run(form, MODEL, tenant)
    assert reply.status == 200, reply.body
    usage: dict[str, Any] = reply.json["result"]["usage"]
    return reply.headers["x-hearth-node"], read_cached_tokens(usage)


async def ask_at_once(gateway: RunningGateway, tenant: Tenant) -> list[tuple[str, int]]:
    """All prompts together, so that no node gets all of them."""
    prompts = [write_prompt(number) for number in range(NUM_PROMPTS)]
    return await asyncio.gather(*(ask(gateway, prompt, tenant) for prompt in prompts))


async def ask_in_turn(
    gateway: RunningGateway, tenant: Tenant, end: str = ""
) -> list[tuple[str, int]]:
    """One prompt after the other: none goes elsewhere because its node is busy with the rest."""
    prompts = [write_prompt(number) + end for number in range(NUM_PROMPTS)]
    return [await ask(gateway, prompt, tenant) for prompt in prompts]


async def test_a_prompt_goes_to_its_cache_through_any_gateway_and_one_that_has_just_started(
    tmp_path: Path,
) -> None:
    await asyncio.to_thread(upgrade_database, f"sqlite+aiosqlite:///{tmp_path / 'hearth.db'}")
    load_or_create_key_ring(tmp_path / "key_ring.json", secrets.token_bytes)
    nodes = create_nodes(tmp_path)
    async with AsyncExitStack() as stack:
        redis = stack.enter_context(run_redis(tmp_path))

        async def start(name: str) -> RunningGateway:
            return await stack.enter_async_context(run_one_of_several(tmp_path, name, nodes, redis))

        for node in nodes:
            node.start()
            stack.callback(node.reap)
        here, there = await start("here"), await start("there")
        known = await ask_at_once(here, here.tenant)
        assert {name for name, _ in known} == set(NAMES)
        assert not any(num_cached for _, num_cached in known)
        num_known = count_known(here)
        await wait_until(lambda: count_known(there) == num_known)
        found = await ask_in_turn(there, here.tenant, " and on")
        assert [name for name, _ in found] == [name for name, _ in known]
        assert all(num_cached > 1000 for _, num_cached in found)
        await asyncio.sleep(TOLD_S + 1)  # what comes later is told all of it, and not as news
        late = await start("late")
        again = await ask_in_turn(late, here.tenant, " and so on")
        assert [name for name, _ in again] == [name for name, _ in known]
        stranger = await late.add_tenant()
        foreign = await ask_in_turn(late, stranger)
        assert not any(num_cached for _, num_cached in foreign)
