"""A real node whose memory holds one of its models: damaged weights, and cores killed as they move.

What is served is always from the weights that were added, and what is sound is served throughout.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts.fleet import NodeReport
from contracts.ids import ModelName
from contracts.inference import Finished, GenerationEvent
from contracts.placement import Tier
from gpu_pool.weights.guard import note_digests
from gpu_pool.weights.header import read_header
from tests.fixtures.gateway_client import GatewayClient, NodeAddress, ask, failure_code, join_ids
from tests.fixtures.node_process import MODEL, kill_hard, list_children, run_node_process
from tests.fixtures.random_checkpoint import write_random_checkpoint

pytestmark = pytest.mark.slow

WEIGHTS = "model.safetensors"
OTHER = ModelName("@test/other")
FLIPPED = ModelName("@test/flipped")
SWAPPED = ModelName("@test/swapped")
ROOM = """
[placement]
device_bytes = 70000000
host_bytes = 8000000
turn_s = 0.0
"""
"""One model with its 64 MiB of KV memory, and all others asleep."""


def add(folder: Path, seed: int) -> Path:
    """A model with weights of its own, noted as `hearth models add` does."""
    write_random_checkpoint(folder, seed=seed)
    note_digests(folder)
    return folder


def flip_bit(path: Path) -> None:
    entry = read_header(path).tensors["model.layers.1.mlp.up_proj.weight"]
    content = bytearray(path.read_bytes())
    content[entry.offset + 11] ^= 1
    path.write_bytes(content)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[tuple[int, NodeAddress]]:
    """Two sound models, one with a flipped bit, one with the weights of another model."""
    sound, *others = (add(tmp_path / str(seed), seed) for seed in range(4))
    flip_bit(others[1] / WEIGHTS)
    (others[2] / WEIGHTS).write_bytes((sound / WEIGHTS).read_bytes())
    models = "".join(
        f'[[models]]\nname = "{name}"\npath = "{path}"\n'
        for name, path in zip((OTHER, FLIPPED, SWAPPED), others, strict=True)
    )
    with run_node_process(tmp_path, sound, more_settings=ROOM + models) as (process, address):
        yield process.pid, address


async def answer(client: GatewayClient, model: ModelName) -> list[GenerationEvent]:
    stream = await client.open(ask(model, max_tokens=12, ignore_eos=True), model=model)
    return await stream.read_all(timeout_s=60)


async def answer_in_the_end(client: GatewayClient, model: ModelName) -> tuple[int, ...]:
    """The tokens, whatever had to be started again for them."""
    async with asyncio.timeout(90):
        while not isinstance((events := await answer(client, model))[-1], Finished):
            assert failure_code(events) in {"stream_broken", "model_cold"}
            await asyncio.sleep(0.2)
    return join_ids(events)


async def read_report(client: GatewayClient) -> NodeReport:
    """The latest one."""
    report = await client.reports.get()
    while not client.reports.empty():
        report = client.reports.get_nowait()
    return report


async def test_damaged_models_fail_by_name_and_sound_ones_survive_kills_on_their_way(
    node: tuple[int, NodeAddress],
) -> None:
    pid, address = node
    async with GatewayClient(address) as client:
        expected = {name: await answer_in_the_end(client, name) for name in (MODEL, OTHER)}
        assert expected[MODEL] != expected[OTHER]
        for name in (FLIPPED, SWAPPED):
            assert failure_code(await answer(client, name)) == "model_failed"
        reasons: dict[ModelName, str] = {}
        async with asyncio.timeout(10):  # the last report may be a moment older than the answers
            while set(reasons) != {FLIPPED, SWAPPED}:
                report = await read_report(client)
                reasons = {failed.name: failed.reason for failed in report.failed}
        assert "`model.layers.1.mlp.up_proj.weight` has other bytes" in reasons[FLIPPED]
        assert "has other bytes than when the model was added" in reasons[SWAPPED]

        for name in (MODEL, OTHER, MODEL):  # each wakes while the one before it falls asleep
            assert await answer_in_the_end(client, name) == expected[name]
        waiting = await client.open(ask(OTHER, max_tokens=12, ignore_eos=True), model=OTHER)
        await asyncio.sleep(0.005)
        for core_pid in list_children(pid):  # one gives up its memory, the other takes it
            kill_hard(core_pid)
        last = (await waiting.read_all(timeout_s=60))[-1]
        assert isinstance(last, Finished) or failure_code([last]) in {"stream_broken", "model_cold"}
        for name in (OTHER, MODEL):
            assert await answer_in_the_end(client, name) == expected[name]
        report = await read_report(client)
        assert report.memory.device_used_bytes <= report.memory.device_budget_bytes
        tiers = {placement.name: placement.tier for placement in report.placements}
        assert list(tiers.values()).count(Tier.GPU) <= 1
