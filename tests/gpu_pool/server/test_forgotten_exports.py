"""A core hears that nobody waits for a sequence's blocks, also after the sequence's end."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpu_pool.engine.messages import (
    ForgetExport,
    ReleaseExport,
    ToCore,
)
from gpu_pool.engine.transport import ZmqTransport
from gpu_pool.plan import SequenceId
from gpu_pool.server.engine_client import (
    CoreListener,
    EngineClient,
    SequenceListener,
    TransferListener,
)
from tests.gateway.running_gateway import wait_until
from tests.gpu_pool.engine.engine_rig import create_request


class Deaf(CoreListener, SequenceListener, TransferListener):
    """Wants to know nothing, neither of the core nor of a sequence nor of its blocks."""


@asynccontextmanager
async def run_both(folder: Path) -> AsyncGenerator[tuple[EngineClient, ZmqTransport]]:
    """The two ends, connected."""
    endpoints = f"ipc://{folder}/to", f"ipc://{folder}/from"
    client = EngineClient(*endpoints, Deaf())
    core = ZmqTransport(*endpoints)
    try:
        await wait_until(client.ping)
        yield client, core
    finally:
        core.close()
        client.close()


def add(client: EngineClient, mover: Deaf | None) -> SequenceId:
    """A sequence, which has blocks that somebody hears of if there is a `mover`."""
    return client.add(lambda number: create_request(number, [1, 2]), Deaf(), mover)


@pytest.mark.parametrize("moves", [True, False])
async def test_a_core_is_told_once_whose_blocks_nobody_waits_for(
    tmp_path: Path, moves: bool
) -> None:
    """The control has no blocks that anybody hears of."""
    async with run_both(tmp_path) as (client, core):
        sequence_id = add(client, Deaf() if moves else None)
        client.forget_blocks(sequence_id)
        client.forget_blocks(sequence_id)
        client.release_export(sequence_id)
        heard: list[ToCore] = []
        while ReleaseExport(sequence_id) not in heard:
            heard += await asyncio.to_thread(core.receive, True, 10)
        assert heard.count(ForgetExport(sequence_id)) == moves


async def test_whoever_leaves_after_the_core_has_gone_tells_nobody(tmp_path: Path) -> None:
    async with run_both(tmp_path) as (client, _):
        sequence_id = add(client, Deaf())
        client.close()
        client.forget_blocks(sequence_id)
        client.release_export(sequence_id)
