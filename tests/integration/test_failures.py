"""The engine core is killed in the middle of answers: they go on, and nobody sees the seam."""

import asyncio
import os
import signal

from tests.integration.account_client import AccountClient
from tests.integration.process_tree import find_descendant
from tests.integration.running_dev import RunningDev

CORE = "gpu_pool.engine_core"
NUM_STREAMS = 8


async def test_a_killed_core_is_started_again_and_its_streams_go_on(
    dev: RunningDev, account: AccountClient
) -> None:
    wanted = await collect_texts(account, asyncio.Barrier(NUM_STREAMS))
    running = asyncio.Barrier(NUM_STREAMS + 1)
    disturbed = asyncio.create_task(collect_texts(account, running))
    await running.wait()
    core = find_descendant(dev.process.pid, CORE)
    os.kill(core.pid, signal.SIGKILL)
    assert await disturbed == wanted
    assert find_descendant(dev.process.pid, CORE).pid != core.pid


async def collect_texts(account: AccountClient, running: asyncio.Barrier) -> list[str]:
    """The texts of all streams, which must be whole."""
    streams = (collect_text(account, number, running) for number in range(NUM_STREAMS))
    return await asyncio.gather(*streams)


async def collect_text(account: AccountClient, number: int, running: asyncio.Barrier) -> str:
    """The text of a stream that goes on for a while; waits for the others at its third event."""
    texts: list[str] = []
    events: list[dict[str, object]] = []
    body = {"max_tokens": 200, "ignore_eos": True, "temperature": 0}
    async for event in account.stream(f"Story {number}", **body):
        events.append(event)
        texts.append(str(event.get("response", "")))
        if len(texts) == 3:
            await running.wait()
    assert all(event.get("success", True) for event in events), events[-1]
    return "".join(texts)
