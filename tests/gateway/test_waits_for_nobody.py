"""A request that one node has failed and another has sent away: it goes where there is room."""

import asyncio
from pathlib import Path

import pytest

from contracts.errors import StreamBroken
from tests.gateway.running_gateway import run_gateway, wait_until, wait_until_async
from tests.gateway.scripted_node import MODEL, ScriptedStream, run_node
from tests.gateway.test_continuation import are_known
from tests.gateway.test_node_drains import WHOLE, drain


@pytest.mark.parametrize("has_failed", [False, True])
async def test_who_leaves_a_drained_node_goes_back_to_one_that_has_failed_once(
    tmp_path: Path, database_template: Path, has_failed: bool
) -> None:
    """As in a rolling restart: the first node is back when the second one is emptied. The control:
    the first node has not had the request yet.
    """

    async def fail_once(stream: ScriptedStream) -> None:
        if len(first.streams) == 1:
            await stream.fail(StreamBroken("The engine died."))
        else:
            await stream.answer("Hel", "lo")

    async def hold(stream: ScriptedStream) -> None:
        await stream.confirm_abort()

    async with run_node("node-1") as first, run_node("node-2") as second:
        first.script, second.script = fail_once, hold
        nodes = [first, second]
        queue = {"max_wait_s": 5}
        async with run_gateway(tmp_path, database_template, nodes, queue=queue) as gateway:
            await wait_until_async(lambda: are_known(gateway, 2))
            if not has_failed:
                first.num_running = 50
                await first.send_report()
                fleet = gateway.gateway._pool.fleet  # type: ignore[reportPrivateUsage]
                await wait_until(lambda: fleet.roster.snapshots[0].loads[MODEL].num_running == 50)
                first.script = ScriptedStream.answer
            running = asyncio.create_task(gateway.run(WHOLE))
            await wait_until(lambda: bool(second.streams))
            assert len(first.streams) == has_failed
            await drain(gateway, "node-2", 0)
            reply = await running  # who waits for nobody is refused in the end
            assert (reply.status, reply.headers["x-hearth-node"]) == (200, "node-1")
