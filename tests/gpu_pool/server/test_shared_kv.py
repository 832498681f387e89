"""Two models of a real node share KV memory: each burst has it while it lasts.

Their blocks take half a MiB, so that each goes by itself: of a slab of many, one that a floor keeps
would keep the rest.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from contracts.ids import ModelName
from contracts.inference import Finished, GenerationEvent
from tests.fixtures import random_checkpoint
from tests.fixtures.gateway_client import GatewayClient, ask
from tests.fixtures.node_process import (
    MODEL,
    is_alive,
    kill_hard,
    list_children,
    run_node_process,
    wait_until,
)

OTHER = ModelName("@test/other-llama")
NUM_REQUESTS, NUM_TOKENS = 24, 60
NUM_OWN, NUM_SHARED = 32, 96
"""Blocks."""
BLOCK_TOKENS, BLOCK_BYTES = 64, 512 << 10


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model with so much KV for each token."""
    monkeypatch.setattr(random_checkpoint, "NUM_KV_HEADS", 4)
    monkeypatch.setattr(random_checkpoint, "HEAD_DIM", 128)
    return random_checkpoint.write_random_checkpoint(tmp_path / "checkpoint")


def describe_sharing(checkpoint: Path) -> str:
    """What stands behind the `[engine]` table's last line, and another model."""
    return f"""
kv_least_bytes = {NUM_OWN * BLOCK_BYTES}
block_size = {BLOCK_TOKENS}
[[models]]
name = "{OTHER}"
path = "{checkpoint}"
"""


async def burst(client: GatewayClient, model: ModelName) -> None:
    """Long requests at once, with nothing in common."""
    asked = [
        client.generate(
            ask(model, f"{number} " * 400, max_tokens=NUM_TOKENS, ignore_eos=True), model=model
        )
        for number in range(NUM_REQUESTS)
    ]
    for events in await asyncio.gather(*asked):
        assert isinstance(events[-1], Finished)


async def wait_served(client: GatewayClient, model: ModelName) -> None:
    """Returns when the model is there again: the node has to notice first that it is gone."""
    events: Sequence[GenerationEvent] = ()
    while not events or not isinstance(events[-1], Finished):
        events = await client.generate(ask(model), model=model)


async def read_blocks(client: GatewayClient) -> dict[ModelName, int]:
    """KV memory of each model, as the next report but one has it."""
    while not client.reports.empty():
        client.reports.get_nowait()
    for _ in range(2):
        report = await asyncio.wait_for(client.reports.get(), 60)
    return {load.name: load.num_blocks for load in report.loads}


@pytest.mark.slow
async def test_memory_goes_where_somebody_waits(
    tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEARTH_POOL__KV_SHARED_BYTES", str(NUM_SHARED * BLOCK_BYTES))
    with run_node_process(tmp_path, checkpoint, more_settings=describe_sharing(checkpoint)) as (
        process,
        address,
    ):
        async with GatewayClient(address, report_ms=200) as client:
            assert await read_blocks(client) == {MODEL: NUM_OWN, OTHER: NUM_OWN}
            await burst(client, MODEL)
            first = await read_blocks(client)
            assert first == {MODEL: NUM_OWN + NUM_SHARED, OTHER: NUM_OWN}
            await burst(client, OTHER)
            second = await read_blocks(client)
            assert second[OTHER] > 2 * NUM_OWN
            assert second[MODEL] < first[MODEL]
            assert sum(second.values()) <= sum(first.values())
            # Killed, a core leaves all that it had to the other.
            cores = list_children(process.pid)
            for pid in cores:
                kill_hard(pid)
            await wait_until(lambda: not any(map(is_alive, cores)))
        async with GatewayClient(address, report_ms=200) as client:
            for model in (OTHER, MODEL):
                await wait_served(client, model)
                await burst(client, model)
            third = await read_blocks(client)
            assert third[MODEL] > 2 * NUM_OWN
