"""Nodes that offer one model with contexts of different lengths: real sockets, scripted nodes.

A node's context is as long as its memory has room for, so that cards of different sizes differ.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from contracts.errors import ContextTooLong
from contracts.inference import Accepted, Delta, Finished, FinishReason, Usage
from tests.gateway.running_gateway import RunningGateway, run_gateway, wait_until_async
from tests.gateway.scripted_node import ScriptedNode, ScriptedStream, run_node
from tests.gateway.test_continuation import go_on
from tests.gateway.test_failover import list_up, read_text

LONG, SHORT = 4096, 128


async def refuse(stream: ScriptedStream) -> None:
    """A node whose context is too short."""
    await stream.fail(ContextTooLong("This model's context is too short."))


@pytest.fixture
async def nodes() -> AsyncGenerator[list[ScriptedNode]]:
    """One node with a short context, which comes first, and two with a long one."""
    async with (
        run_node("node-1") as first,
        run_node("node-2") as second,
        run_node("node-3") as last,
    ):
        first.context_window, first.script = SHORT, refuse
        yield [first, second, last]


@pytest.fixture
async def gateway(
    tmp_path: Path, database_template: Path, nodes: list[ScriptedNode]
) -> AsyncGenerator[RunningGateway]:
    """A gateway that has heard of all of them and has no retries to spare."""
    routing = {"resume_patience_s": 0.5, "retry_reserve": 1}
    async with run_gateway(tmp_path, database_template, nodes, routing=routing) as running:

        async def are_up() -> bool:
            return len(await list_up(running)) == len(nodes)

        await wait_until_async(are_up)
        yield running


async def test_a_request_too_long_for_one_node_is_answered_by_one_with_a_longer_context(
    gateway: RunningGateway, nodes: list[ScriptedNode]
) -> None:
    asked = [gateway.run({"prompt": f"{number} " + "word " * 1000}) for number in range(30)]
    replies = await asyncio.gather(*asked)
    assert Counter(reply.status for reply in replies) == {200: 30}
    assert nodes[0].streams  # the control: some came to the short one first
    assert {reply.headers["x-hearth-node"] for reply in replies} == {"node-2", "node-3"}


async def test_what_is_too_long_for_all_is_refused_once_the_longest_has_said_so(
    gateway: RunningGateway, nodes: list[ScriptedNode]
) -> None:
    nodes[1].script = nodes[2].script = refuse
    reply = await gateway.run({"prompt": "word " * 10_000})
    assert (reply.status, reply.code) == (400, 7400)
    assert [len(node.streams) for node in nodes] in ([1, 1, 0], [1, 0, 1], [0, 1, 0], [0, 0, 1])


async def test_an_answer_goes_on_where_the_context_has_room_for_it(
    gateway: RunningGateway, nodes: list[ScriptedNode]
) -> None:
    async def begin_and_go(stream: ScriptedStream) -> None:
        await stream.put(Accepted(SHORT, 0))
        await stream.put(Delta("Hal", (1, 2, 3)))
        nodes[1].drop_connections()

    nodes[0].is_ready = nodes[2].is_ready = False
    for node in nodes:
        await node.send_report()
    nodes[1].script, nodes[2].script = begin_and_go, go_on
    asked = asyncio.create_task(gateway.run({"prompt": "Hi", "stream": True}))
    await wait_until_async(lambda: _is_asked(nodes[1]))
    nodes[0].is_ready = nodes[2].is_ready = True
    for node in nodes:
        await node.send_report()
    assert read_text(await asked) == "Hallo"
    assert not nodes[0].streams
    assert len(nodes[2].streams) == 1


@pytest.mark.parametrize("options", [{}, {"max_tokens": 3}], ids=["default", "asked for"])
async def test_an_answer_that_has_filled_its_context_is_ended_elsewhere(
    gateway: RunningGateway, nodes: list[ScriptedNode], options: dict[str, int]
) -> None:
    """Only its end is missing when its node goes: nobody has room for more, nor has to."""

    async def fill_and_go(stream: ScriptedStream) -> None:
        await stream.put(Accepted(SHORT - 3, 0))
        await stream.put(Delta("Hal", (1, 2, 3)))
        nodes[1].drop_connections()

    async def end(stream: ScriptedStream) -> None:
        await stream.put(Accepted(SHORT - 3, 0))
        await stream.put(Finished(FinishReason.LENGTH, Usage(SHORT - 3, 0, 3)))

    for node in nodes:
        node.context_window, node.is_ready = SHORT, node is nodes[1]
        node.script = fill_and_go if node is nodes[1] else end
        await node.send_report()
    reply = await gateway.run({"prompt": "Hi", "stream": True} | options)
    assert read_text(reply) == "Hal"
    (stream,) = nodes[0].streams + nodes[2].streams
    assert stream.request.resumption is not None
    assert stream.request.resumption.token_ids == (1, 2, 3)


async def _is_asked(node: ScriptedNode) -> bool:
    return bool(node.streams)
