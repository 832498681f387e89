"""The engine core is killed in the middle of answers: clean error events, then back to work."""

import asyncio
import os
import signal

from tests.integration.account_client import AccountClient
from tests.integration.process_tree import find_descendant
from tests.integration.running_dev import RunningDev

CORE = "gpu_pool.engine_core"
NUM_STREAMS = 8


async def test_a_killed_core_ends_streams_with_an_error_and_the_next_request_is_served(
    dev: RunningDev, account: AccountClient
) -> None:
    before = await account.run("What is Hearth?", max_tokens=16)
    running = asyncio.Barrier(NUM_STREAMS + 1)
    streams = [
        asyncio.create_task(collect_events(account, number, running))
        for number in range(NUM_STREAMS)
    ]
    await running.wait()
    core = find_descendant(dev.process.pid, CORE)
    os.kill(core.pid, signal.SIGKILL)
    for events in await asyncio.gather(*streams):
        assert events[0]["response"]
        failure, end = events[-2:]
        assert end == {"closed": True}  # no end mark: nobody may take this for a whole answer
        assert failure["success"] is False
        assert failure["errors"][0]["code"] == 7502
        assert failure["errors"][0]["message"].endswith(".")

    after = await account.run("What is Hearth?", max_tokens=16)  # waits while the model is loaded
    assert after["response"] == before["response"]
    assert find_descendant(dev.process.pid, CORE).pid != core.pid


async def collect_events(
    account: AccountClient, number: int, running: asyncio.Barrier
) -> list[dict[str, object]]:
    """All events of a stream that would go on for long."""
    events: list[dict[str, object]] = []
    async for event in account.stream(f"Story {number}", max_tokens=3500, ignore_eos=True):
        events.append(event)
        if len(events) == 3:
            await running.wait()
    return events
