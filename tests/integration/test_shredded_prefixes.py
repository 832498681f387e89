"""An account's key is replaced over HTTP: what a node keeps of it in files is nobody's then.

The node's core is killed before each look, so that what is found comes from files alone.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

import pytest

from contracts.ids import ModelName
from migrations.upgrade import upgrade_database
from tests.fixtures.fleet_node import FleetNode, create_fleet_node
from tests.fixtures.node_process import kill_hard, list_children
from tests.fixtures.random_checkpoint import write_random_checkpoint
from tests.gateway.running_gateway import (
    RunningGateway,
    Tenant,
    run_gateway,
    wait_until,
    wait_until_async,
)
from tests.gpu_pool.models.family_checkpoint import write_checkpoint
from tests.integration.account_client import read_cached_tokens
from tests.integration.test_shared_prefixes import BLOCK_SIZE, SLOW_TO_COMPUTE, write_prompt

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]

MODEL: Final = ModelName("@hearth/tests/random-llama")
NUMBERS: Final = count(1000)


@dataclass(frozen=True)
class Keeper:
    """A gateway before one node that keeps prefixes in files."""

    gateway: RunningGateway
    node: FleetNode
    files: Path

    async def ask(self, prompt: str, tenant: Tenant | None = None) -> tuple[int, int]:
        """Tokens of the prompt that were cached, and tokens that its full blocks hold."""
        form = {"prompt": prompt, "max_tokens": 2, "ignore_eos": True, "temperature": 0}
        reply = await self.gateway.run(form, MODEL, tenant)
        assert reply.status == 200, reply.body
        usage = reply.json["result"]["usage"]
        return read_cached_tokens(usage), (usage["prompt_tokens"] - 1) // BLOCK_SIZE * BLOCK_SIZE

    async def keep(self, prompt: str, tenant: Tenant | None = None) -> None:
        """Has a prompt computed that nobody knows, and its blocks kept."""
        num_files = len(self.list_files())
        num_cached, num_full = await self.ask(prompt, tenant)
        assert num_cached == 0
        await wait_until(lambda: len(self.list_files()) >= num_files + num_full // BLOCK_SIZE, 60)

    async def forget_but_files(self) -> None:
        """Another core, which has the files and knows how fast it reads and computes."""
        pid = self.find_server()
        before = set(list_children(pid))
        for child in before:
            kill_hard(child)
        await wait_until(lambda: bool(set(list_children(pid)) - before), 60)
        await self.keep(write_prompt(next(NUMBERS)))

    async def finds_in_files(self, prompt: str, tenant: Tenant, num_tries: int = 5) -> bool:
        """True once a new core brings all of a prompt: on a busy machine it may give a fetch up."""
        for _ in range(num_tries):
            await self.forget_but_files()
            num_cached, num_full = await self.ask(prompt, tenant)
            if num_cached == num_full:
                return True
        return False

    async def count_found(self, prompt: str, tenant: Tenant) -> int:
        """Tokens of a prompt that a new core brings, however few."""
        await self.forget_but_files()
        return (await self.ask(prompt, tenant))[0]

    def find_server(self) -> int:
        """The node's process, whose children its cores are."""
        assert self.node.process is not None
        return self.node.process.pid

    def list_files(self) -> set[Path]:
        """All that is kept."""
        return set(self.files.rglob("*.kv"))


@asynccontextmanager
async def run_keeper(folder: Path) -> AsyncGenerator[Keeper]:
    """Ready to serve."""
    checkpoint = write_random_checkpoint(folder / "checkpoint")
    write_checkpoint(checkpoint, "llama", **SLOW_TO_COMPUTE)
    template, files = folder / "template.db", folder / "kv"
    await asyncio.to_thread(upgrade_database, f"sqlite+aiosqlite:///{template}")
    settings = f"""[[models]]
name = "{MODEL}"
path = "{checkpoint}"
[engine]
kv_bytes = 67108864
num_threads = 1
[engine.tiers.file]
path = "{files}"
max_bytes = 1000000000
"""
    node = create_fleet_node(folder, "keeper", ("cli", "node"), settings)
    node.start()
    try:
        async with run_gateway(folder, template, [node], is_awaited=False) as gateway:
            await wait_until_async(lambda: is_ready(gateway), timeout_s=120)
            yield Keeper(gateway, node, files)
    finally:
        node.reap()


async def is_ready(gateway: RunningGateway) -> bool:
    """True when the node serves."""
    return (await gateway.send("GET", "/health/ready", api_token=None)).status == 200


async def rotate(gateway: RunningGateway, tenant: Tenant) -> None:
    """Replaces the account's salt, as operators do; the gateway knows within two seconds."""
    path = f"/operator/v1/accounts/{tenant.account_id}/cache_salt/rotate"
    reply = await gateway.send("POST", path, api_token=gateway.operator, origin=gateway.admin)
    assert reply.status == 200, reply.body
    await asyncio.sleep(3)


async def test_what_is_kept_of_an_account_is_found_no_more_once_its_salt_was_rotated_over_http(
    tmp_path: Path,
) -> None:
    async with run_keeper(tmp_path) as keeper:
        rotated, other = keeper.gateway.tenant, await keeper.gateway.add_tenant()
        mine, others = write_prompt(1), write_prompt(2)
        await keeper.keep(mine, rotated)
        await keeper.keep(others, other)
        assert await keeper.finds_in_files(mine, rotated)  # the control
        assert await keeper.count_found(mine, other) == 0
        files = keeper.list_files()

        await rotate(keeper.gateway, rotated)
        assert await keeper.count_found(mine, rotated) == 0
        assert files <= keeper.list_files(), "nothing is found because nothing is there"
        assert await keeper.finds_in_files(mine, rotated)  # as it was computed just now
        assert await keeper.finds_in_files(others, other)  # as it was before
