"""Streams that leave one node after another, as each is emptied: no drain is held against them."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from contracts.errors import StreamBroken
from contracts.inference import Accepted, Delta, Finished, FinishReason, Usage
from tests.gateway.running_gateway import RunningGateway, run_gateway, wait_until, wait_until_async
from tests.gateway.scripted_node import ScriptedNode, ScriptedStream, run_node
from tests.gateway.test_continuation import STREAM, are_known, read_text
from tests.gateway.test_node_drains import drain, undrain

NUM_NODES = 7
NUM_STREAMS = 6


class Speaker:
    """Says the next letter of a text and waits, until it may say the rest."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.may_end = asyncio.Event()
        self.has_spoken: dict[str, int] = {}
        """How many streams have got their letter, by request."""

    async def script(self, stream: ScriptedStream) -> None:
        before = stream.request.resumption
        place = 0 if before is None else len(before.token_ids)
        await stream.put(Accepted(7, 0))
        await stream.put(Delta(self.text[place], (place,)))
        self.has_spoken[stream.grant.request_id] = place + 1
        waits = [asyncio.ensure_future(one.wait()) for one in (self.may_end, stream.aborted)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        if not stream.aborted.is_set():
            rest = tuple(range(place + 1, len(self.text)))
            await stream.put(Delta(self.text[place + 1 :], rest))
            await stream.put(Finished(FinishReason.STOP, Usage(7, 0, len(self.text))))


@pytest.fixture
async def nodes() -> AsyncGenerator[list[ScriptedNode]]:
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(run_node(f"node-{number}", "weur"))
            for number in range(NUM_NODES)
        ]


@pytest.fixture
async def fleet(
    tmp_path: Path, database_template: Path, nodes: list[ScriptedNode]
) -> AsyncGenerator[RunningGateway]:
    """A gateway that tries four times, and few times for all requests together."""
    routing = {"resume_patience_s": 0.5, "max_attempts": 4, "retry_reserve": 3}
    async with run_gateway(tmp_path, database_template, nodes, routing=routing) as gateway:
        await wait_until_async(lambda: are_known(gateway, NUM_NODES))
        yield gateway


def find_speaking(nodes: list[ScriptedNode]) -> ScriptedNode:
    """The node that has the only stream now."""
    (node,) = [one for one in nodes if any(not s.aborted.is_set() for s in one.streams)]
    return node


async def test_a_stream_outlives_more_drains_than_it_has_attempts(
    fleet: RunningGateway, nodes: list[ScriptedNode]
) -> None:
    speaker = Speaker("Hearths")
    for node in nodes:
        node.script = speaker.script
    running = asyncio.create_task(fleet.run(STREAM))
    for number in range(1, NUM_NODES):
        await wait_until(lambda number=number: list(speaker.has_spoken.values()) == [number])
        await drain(fleet, find_speaking(nodes).node_id, 0)
    await wait_until(lambda: list(speaker.has_spoken.values()) == [NUM_NODES])
    speaker.may_end.set()
    assert read_text(await running) == "Hearths"
    assert sorted(len(node.streams) for node in nodes) == [1] * NUM_NODES


async def test_a_stream_that_nodes_fail_has_only_its_attempts(
    fleet: RunningGateway, nodes: list[ScriptedNode]
) -> None:
    """The control: the same way through the nodes, none of which is drained."""

    async def begin_and_fail(stream: ScriptedStream) -> None:
        await stream.put(Accepted(7, 0))
        await stream.put(Delta("x", (1,)))
        await asyncio.sleep(0.2)  # the client has been told 200 then
        await stream.fail(StreamBroken("The engine died."))

    for node in nodes:
        node.script = begin_and_fail
    reply = await fleet.run(STREAM)
    assert reply.events[-1] != "[DONE]"
    assert sum(len(node.streams) for node in nodes) == 4


@pytest.mark.parametrize("is_drained", [True, False])
async def test_a_drain_takes_nothing_of_what_all_requests_may_try_again(
    fleet: RunningGateway, nodes: list[ScriptedNode], is_drained: bool
) -> None:
    """The control loses the same streams with the node's connection; three may go on then."""
    speaker, (first, *others) = Speaker("Hallo"), nodes
    for node in nodes:
        node.script = speaker.script
    for node in others:
        await drain(fleet, node.node_id)
    running = [asyncio.create_task(fleet.run(STREAM)) for _ in range(NUM_STREAMS)]
    await wait_until(lambda: len(speaker.has_spoken) == NUM_STREAMS)
    for node in others:
        assert await undrain(fleet, node.node_id) == 200
    if is_drained:
        await drain(fleet, first.node_id, 0)
        await wait_until(lambda: all(s.aborted.is_set() for s in first.streams))
    else:
        first.drop_connections()
    await asyncio.sleep(0.5)
    speaker.may_end.set()
    replies = await asyncio.gather(*running)
    num_whole = sum(reply.events[-1] == "[DONE]" for reply in replies)
    assert num_whole == (NUM_STREAMS if is_drained else 3)
