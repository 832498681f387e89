"""A model that two tensor ranks and two stages hold, beside the same model whole, on a real node.

Both answer alike to a real client; a killed rank ends its requests cleanly, the model comes back
with other processes, and nothing outlives the node.
"""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from openai import APIError, AsyncOpenAI

from contracts.ids import ModelName
from gpu_pool.model_store import BUNDLED_PATH
from migrations.upgrade import upgrade_database
from tests.fixtures.fleet_node import FleetNode, create_fleet_node
from tests.gateway.running_gateway import RunningGateway, run_gateway, wait_until_async
from tests.integration.process_tree import ProcessRow, list_descendants, list_survivors

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]

WHOLE: Final = ModelName("@hearth/tests/whole")
DIVIDED: Final = ModelName("@hearth/tests/divided")
QUESTIONS: Final = ("What is Hearth?", "What is a node?", "How do I add a model?", "Hello!")


def create_node(folder: Path) -> FleetNode:
    """A node that is not started."""
    settings = f"""
[[models]]
name = "{WHOLE}"
path = "{BUNDLED_PATH}"
dtype = "float32"
[[models]]
name = "{DIVIDED}"
path = "{BUNDLED_PATH}"
dtype = "float32"
tensor_parallel = 2
pipeline_parallel = 2
[engine]
kv_bytes = 67108864
num_threads = 1
"""
    return create_fleet_node(folder, "node-1", ("cli", "node"), settings)


@asynccontextmanager
async def run_pair(folder: Path) -> AsyncGenerator[tuple[RunningGateway, FleetNode]]:
    """A gateway before one node, both models ready."""
    template = folder / "template.db"
    await asyncio.to_thread(upgrade_database, f"sqlite+aiosqlite:///{template}")
    node = create_node(folder)
    node.start()
    try:
        async with run_gateway(folder, template, [node], is_awaited=False) as gateway:  # type: ignore[arg-type]
            await wait_until_async(lambda: are_ready(gateway), timeout_s=240)
            yield gateway, node
    finally:
        node.reap()


async def are_ready(gateway: RunningGateway) -> bool:
    """True when both models can answer."""
    reply = await gateway.send(
        "GET", "/operator/v1/nodes", api_token=gateway.operator, origin=gateway.admin
    )
    nodes = [n for n in reply.json["result"] if n["is_connected"]]
    return sum(load["is_ready"] for node in nodes for load in node["loads"]) == 2


def list_ranks(node: FleetNode) -> list[ProcessRow]:
    """The rank processes below a node."""
    assert node.process is not None
    rows = list_descendants(node.process.pid)
    return [row for row in rows if "gpu_pool.worker.rank_process" in row.command]


async def ask(client: AsyncOpenAI, model: str, question: str, max_tokens: int) -> str:
    """The text of a stream."""
    stream: Any = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        max_tokens=max_tokens,
        temperature=0,
        stream=True,
    )
    parts = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
    return "".join(parts)


async def test_a_divided_model_is_served_and_survives_the_end_of_a_rank(tmp_path: Path) -> None:
    async with run_pair(tmp_path) as (gateway, node):
        client = AsyncOpenAI(
            base_url=gateway.base + gateway.account_path("/ai/v1"),
            api_key=gateway.tenant.api_token,
            max_retries=0,
        )
        async with client:
            texts = {
                model: await asyncio.gather(*(ask(client, model, q, 40) for q in QUESTIONS))
                for model in (WHOLE, DIVIDED)
            }
            assert texts[DIVIDED] == texts[WHOLE]
            assert all(texts[WHOLE])
            before = list_ranks(node)
            assert len(before) == 4
            asking = [asyncio.create_task(ask(client, DIVIDED, q, 400)) for q in QUESTIONS]
            await asyncio.sleep(0.2)
            os.kill(before[2].pid, signal.SIGKILL)
            ended = await asyncio.wait_for(asyncio.gather(*asking, return_exceptions=True), 120)
            assert all(isinstance(end, str | APIError) for end in ended), ended  # none hangs
            await wait_until_async(lambda: are_back(gateway, node, before), timeout_s=240)
            assert await ask(client, DIVIDED, QUESTIONS[0], 40) == texts[WHOLE][0]
        after = list_ranks(node)
        assert len(after) == 4
        node.signal(signal.SIGKILL)
        await wait_until_async(lambda: are_gone([*before, *after]), timeout_s=60)


async def are_back(gateway: RunningGateway, node: FleetNode, before: list[ProcessRow]) -> bool:
    """True when both models answer again, none of the old ranks there."""
    is_new = not list_survivors(before) and len(list_ranks(node)) == 4
    return is_new and await are_ready(gateway)


async def are_gone(rows: list[ProcessRow]) -> bool:
    """True when none of these processes runs."""
    return not list_survivors(rows)
