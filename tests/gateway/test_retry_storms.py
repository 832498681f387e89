"""An account whose requests are all refused, and answers of another that lose their node then."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import PoolSaturated
from contracts.inference import Accepted, Delta
from tests.gateway.running_gateway import Reply, run_gateway, wait_until, wait_until_async
from tests.gateway.scripted_node import ScriptedStream, run_node
from tests.gateway.test_continuation import go_on
from tests.gateway.test_failover import list_up

IMPATIENT: dict[str, Any] = {"prompt": "Hi", "options": {"rejectIfBusy": True}}
NUM_IMPATIENT = 40
NUM_ANSWERS = 6


async def serve(stream: ScriptedStream) -> None:
    """A node whose places are all taken, but for answers that it begins or goes on with."""
    if stream.request.reject_if_busy:
        await stream.fail(PoolSaturated("All places are taken."))
    elif stream.request.resumption is not None:
        await go_on(stream)
    else:
        await stream.put(Accepted(7, 0))
        await stream.put(Delta("Hal", (1, 2, 3)))


def is_whole(reply: Reply) -> bool:
    """True for an answer that came to its end."""
    return "".join(event.get("response", "") for event in reply.events[:-1]) == "Hallo"


@pytest.mark.parametrize("reserve", [16, 2], ids=["enough", "the control"])
async def test_requests_that_are_refused_take_no_retry_from_answers_that_are_lost(
    tmp_path: Path, database_template: Path, reserve: int
) -> None:
    routing = {"retry_reserve": reserve, "resume_patience_s": 0.5}
    async with (
        run_node("node-1") as lost,
        run_node("node-2") as other,
        run_gateway(tmp_path, database_template, [lost, other], routing=routing) as gateway,
    ):
        nodes = lost, other
        lost.script = other.script = serve

        async def are_up() -> bool:
            return len(await list_up(gateway)) == len(nodes)

        await wait_until_async(are_up)
        impatient = await gateway.add_tenant()
        body = {"prompt": "Hi", "stream": True}
        asked = [asyncio.create_task(gateway.run(body)) for _ in range(2 * NUM_ANSWERS)]
        await wait_until(lambda: len(lost.streams) == len(other.streams) == NUM_ANSWERS)
        refused = [gateway.run(IMPATIENT, tenant=impatient) for _ in range(NUM_IMPATIENT)]
        assert {reply.status for reply in await asyncio.gather(*refused)} == {429}
        num_sent = sum(stream.request.reject_if_busy for n in nodes for stream in n.streams)
        assert num_sent > NUM_IMPATIENT  # some were tried again
        lost.drop_connections()
        await wait_until(lambda: sum(task.done() for task in asked) >= NUM_ANSWERS)
        replies = [task.result() for task in asked if task.done()]
        num_whole = sum(map(is_whole, replies))
        assert (num_whole == NUM_ANSWERS) == (reserve > NUM_ANSWERS)
        for task in asked:
            task.cancel()
