"""Two nodes, one of which goes: many requests at once, on real sockets, and none is lost."""

import asyncio
import math
from collections import Counter
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import (
    ErrorReport,
    Forbidden,
    NodeUnreachable,
    StreamBroken,
    Unauthenticated,
)
from contracts.inference import Failed
from tests.gateway.raw_http import connect, format_request
from tests.gateway.running_gateway import Reply, RunningGateway, run_gateway, wait_until_async
from tests.gateway.running_gateway import wait_until as wait
from tests.gateway.scripted_node import ScriptedNode, ScriptedStream, run_node

WHOLE: dict[str, Any] = {"prompt": "Hi"}
STREAM = WHOLE | {"stream": True}
NUM_REQUESTS = 20


async def keep_waiting(stream: ScriptedStream) -> None:
    """A node that has the request and says nothing."""
    await stream.confirm_abort()


async def list_up(gateway: RunningGateway) -> list[str]:
    """The nodes that have reported and are connected."""
    reply = await gateway.send(
        "GET", "/operator/v1/nodes", api_token=gateway.operator, origin=gateway.admin
    )
    return [n["node_id"] for n in reply.json["result"] if n["is_connected"] and n["region"]]


@pytest.fixture
async def nodes() -> AsyncGenerator[list[ScriptedNode]]:
    """Two healthy nodes."""
    async with run_node("node-1", "weur") as first, run_node("node-2", "enam") as second:
        yield [first, second]


@pytest.fixture
async def pair(
    tmp_path: Path, database_template: Path, nodes: list[ScriptedNode]
) -> AsyncGenerator[RunningGateway]:
    """A gateway before both nodes, which it has heard of."""
    async with run_gateway(tmp_path, database_template, nodes) as gateway:

        async def are_both_up() -> bool:
            return len(await list_up(gateway)) == len(nodes)

        await wait_until_async(are_both_up)
        yield gateway


def read_text(reply: Reply) -> str:
    """The text of an answer of either kind, which must be complete."""
    assert reply.status == 200
    if not reply.headers["content-type"].startswith("text/event-stream"):
        return reply.json["result"]["response"]
    assert reply.events[-1] == "[DONE]"
    return "".join(event["response"] for event in reply.events[:-1])


@pytest.mark.parametrize("body", [WHOLE, STREAM], ids=["whole", "stream"])
async def test_when_a_link_is_cut_all_that_waited_on_it_are_answered_by_the_other_node(
    pair: RunningGateway, nodes: list[ScriptedNode], body: dict[str, Any]
) -> None:
    nodes[0].script = keep_waiting
    asked = [asyncio.create_task(pair.run(body)) for _ in range(NUM_REQUESTS)]
    await wait(lambda: sum(len(node.streams) for node in nodes) == NUM_REQUESTS)
    num_waiting = len(nodes[0].streams)
    assert num_waiting > 0  # the control: there is something to lose
    assert sum(not task.done() for task in asked) >= num_waiting
    await nodes[0].stop()
    replies = await asyncio.gather(*asked)
    assert [read_text(reply) for reply in replies] == ["Hello"] * NUM_REQUESTS
    assert {reply.headers["x-hearth-node"] for reply in replies} == {"node-2"}
    assert len(nodes[1].streams) == NUM_REQUESTS
    attempts = Counter(stream.grant.request_id for node in nodes for stream in node.streams)
    assert Counter(attempts.values()) == {2: num_waiting, 1: NUM_REQUESTS - num_waiting}
    await nodes[0].start()


async def test_a_node_that_returns_is_used_again(
    pair: RunningGateway, nodes: list[ScriptedNode]
) -> None:
    await nodes[0].stop()

    async def is_gone() -> bool:
        return await list_up(pair) == ["node-2"]

    async def is_back() -> bool:
        return len(await list_up(pair)) == len(nodes)

    await wait_until_async(is_gone)
    assert (await pair.run(WHOLE)).headers["x-hearth-node"] == "node-2"
    await nodes[0].start()
    await wait_until_async(is_back, timeout_s=20)
    assert (await pair.run(WHOLE)).headers["x-hearth-node"] == "node-1"


async def test_with_every_node_gone_the_answer_is_prompt_and_worth_a_retry(
    pair: RunningGateway, nodes: list[ScriptedNode]
) -> None:
    for node in nodes:
        await node.stop()

    async def are_gone() -> bool:
        return await list_up(pair) == []

    await wait_until_async(are_gone)
    reply = await pair.run(WHOLE)
    assert (reply.status, reply.code) == (429, 3040)
    assert reply.headers["x-should-retry"] == "true"
    assert (await pair.send("GET", "/health/ready", api_token=None)).status == 503
    assert (await pair.send("GET", "/health/live", api_token=None)).status == 200
    for node in nodes:
        await node.start()


async def test_the_only_node_is_asked_again_when_that_may_help(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    async def fail_once(stream: ScriptedStream) -> None:
        if len(node.streams) == 1:
            await stream.fail(StreamBroken("Once."))
        else:
            await stream.answer("Hello")

    node.script = fail_once
    assert read_text(await gateway.run(STREAM)) == "Hello"
    assert [stream.attempt for stream in node.streams] == [1, 2]
    first, second = (stream.grant for stream in node.streams)
    assert (first.attempt, second.attempt) == (1, 2)
    assert first.request_id == second.request_id
    assert first.deadline_unix_ms == second.deadline_unix_ms  # trying again buys no time


async def test_the_only_node_is_asked_twice_and_no_more(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    async def fail(stream: ScriptedStream) -> None:
        await stream.fail(StreamBroken("Always."))

    node.script = fail
    reply = await gateway.run(WHOLE)
    assert (reply.status, reply.code, len(node.streams)) == (502, 7502, 2)


async def test_the_only_node_is_not_asked_again_when_only_another_could_help(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    async def fail(stream: ScriptedStream) -> None:
        await stream.fail(NodeUnreachable("Elsewhere."))

    node.script = fail
    reply = await gateway.run(WHOLE)
    assert (reply.status, reply.code, len(node.streams)) == (503, 7503, 1)


@pytest.mark.parametrize("body", [WHOLE, STREAM], ids=["whole", "stream"])
@pytest.mark.parametrize("error", [Forbidden, Unauthenticated])
async def test_what_a_node_holds_against_the_gateway_stays_between_them(
    gateway: RunningGateway,
    node: ScriptedNode,
    body: dict[str, Any],
    error: type[Forbidden | Unauthenticated],
) -> None:
    async def refuse(stream: ScriptedStream) -> None:
        await stream.fail(error("Inner affairs of account and key.", param="inner"))

    node.script = refuse
    reply = await gateway.run(body)
    assert (reply.status, reply.code) == (503, 7503)
    assert b"nner" not in reply.body
    assert "www-authenticate" not in reply.headers  # a client must not discard its token
    assert len(node.streams) == 1


@pytest.mark.parametrize("body", [WHOLE, STREAM], ids=["whole", "stream"])
async def test_a_client_that_leaves_during_the_second_attempt_aborts_that_one(
    pair: RunningGateway, nodes: list[ScriptedNode], body: dict[str, Any]
) -> None:
    async def fail(stream: ScriptedStream) -> None:
        await stream.fail(StreamBroken("Gone."))

    nodes[0].script, nodes[1].script = fail, keep_waiting
    async with connect(pair) as (_, writer):
        writer.write(format_request(pair, body))
        await wait(lambda: len(nodes[1].streams) == 1)
        assert not nodes[1].streams[0].aborted.is_set()
    await wait(nodes[1].streams[0].aborted.is_set)
    assert len(nodes[0].streams) == 1  # nobody asks a third time for a client that has left


async def test_a_client_that_has_left_is_not_tried_elsewhere(
    pair: RunningGateway, nodes: list[ScriptedNode]
) -> None:
    nodes[0].script = keep_waiting
    async with connect(pair) as (_, writer):
        writer.write(format_request(pair, WHOLE))
        await wait(lambda: len(nodes[0].streams) == 1)
    await wait(nodes[0].streams[0].aborted.is_set)
    nodes[0].drop_connections()

    async def is_settled() -> bool:
        metrics = await pair.send("GET", "/metrics", api_token=pair.operator, origin=pair.admin)
        return b'status="499"' in metrics.body

    await wait_until_async(is_settled)
    assert nodes[1].streams == []


@pytest.mark.parametrize("pause_s", [math.nan, math.inf, -1.0, 1e10, 2.0])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_pause_that_no_header_could_name_is_an_answer_all_the_same(
    tmp_path: Path, database_template: Path, pause_s: float, stream: bool
) -> None:
    async def refuse(scripted: ScriptedStream) -> None:
        report = ErrorReport(code=NodeUnreachable.code, message="No.", retry_after_s=pause_s)
        await scripted.put(Failed(report))

    async with (
        run_node() as node,
        run_gateway(tmp_path, database_template, [node]) as gateway,
    ):
        await gateway.wait_until_ready()
        node.script = refuse
        reply = await gateway.run({"prompt": "Hi", "stream": stream})
        if pause_s == 2.0:  # the control
            assert (reply.status, reply.headers["retry-after"]) == (503, "2")
        else:
            assert (reply.status, reply.code) == (502, 7502)
        assert node.num_hellos == 1  # the connection stands
