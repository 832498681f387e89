"""Nodes that fail: another try before the first byte, an honest end after it."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from contracts.errors import (
    ContextTooLong,
    Forbidden,
    InvariantBroken,
    PoolSaturated,
    ServiceError,
    StreamBroken,
    to_error_report,
)
from contracts.inference import Accepted, Delta, Failed, Usage
from tests.gateway.running_gateway import RunningGateway, run_gateway, wait_until, wait_until_async
from tests.gateway.scripted_node import MODEL, Script, ScriptedNode, ScriptedStream, run_node
from tests.gateway.test_usage_of_failures import read_tokens

BODY = {"prompt": "Hi"}
STREAM = BODY | {"stream": True}


@pytest.fixture
async def nodes() -> AsyncGenerator[list[ScriptedNode]]:
    """Two nodes, the first of which is chosen first."""
    async with run_node("node-1", "weur") as first, run_node("node-2", "enam") as second:
        yield [first, second]


@pytest.fixture
async def pair(
    tmp_path: Path, database_template: Path, nodes: list[ScriptedNode]
) -> AsyncGenerator[RunningGateway]:
    """A gateway before both nodes."""
    async with run_gateway(tmp_path, database_template, nodes) as gateway:

        async def have_reported() -> bool:
            reply = await gateway.send(
                "GET", "/operator/v1/nodes", api_token=gateway.operator, origin=gateway.admin
            )
            return all(node["region"] for node in reply.json["result"])

        await wait_until_async(have_reported)
        yield gateway


def refuse(error: ServiceError) -> Script:
    """A node that refuses everything."""

    async def script(stream: ScriptedStream) -> None:
        await stream.fail(error)

    return script


@pytest.mark.parametrize("body", [BODY, STREAM])
async def test_a_full_node_is_left_for_another(
    pair: RunningGateway, nodes: list[ScriptedNode], body: dict[str, object]
) -> None:
    nodes[0].script = refuse(PoolSaturated("Full."))
    reply = await pair.run(body)
    assert reply.status == 200
    assert reply.headers["x-hearth-node"] == "node-2"
    first, second = nodes[0].streams[0], nodes[1].streams[0]
    assert (first.grant.attempt, second.grant.attempt) == (1, 2)
    assert first.grant.request_id == second.grant.request_id


async def test_nodes_that_refuse_are_asked_again_after_their_next_report_and_not_for_ever(
    pair: RunningGateway, nodes: list[ScriptedNode]
) -> None:
    for node in nodes:
        node.script = refuse(PoolSaturated("Full."))
    reply = await pair.run(BODY)
    assert (reply.status, reply.code) == (429, 3040)
    assert reply.headers["x-should-retry"] == "true"
    assert reply.headers["retry-after"] == "1"
    asked = [len(node.streams) for node in nodes]
    assert sum(asked) == 4
    assert min(asked) >= 1  # who is asked again is whoever reports first


async def test_what_the_client_got_wrong_is_not_tried_again(
    pair: RunningGateway, nodes: list[ScriptedNode]
) -> None:
    nodes[0].script = nodes[1].script = refuse(ContextTooLong("Too long.", param="messages"))
    reply = await pair.run(BODY)
    assert reply.status == 400
    assert len(nodes[0].streams) + len(nodes[1].streams) == 1


async def test_a_grant_that_all_refuse_is_no_fault_of_the_client(
    pair: RunningGateway, nodes: list[ScriptedNode]
) -> None:
    nodes[0].script = nodes[1].script = refuse(Forbidden("The grant's seal is wrong."))
    reply = await pair.run(BODY)
    assert (reply.status, reply.code) == (503, 7503)
    assert b"seal" not in reply.body


async def test_a_node_that_dies_before_the_first_byte_is_replaced(
    pair: RunningGateway, nodes: list[ScriptedNode]
) -> None:
    async def die(stream: ScriptedStream) -> None:
        nodes[0].drop_connections()

    nodes[0].script = die
    reply = await pair.run(STREAM)
    assert reply.headers["x-hearth-node"] == "node-2"
    assert reply.events[-1] == "[DONE]"


async def test_a_whole_answer_is_retried_even_after_the_node_had_begun(
    pair: RunningGateway, nodes: list[ScriptedNode]
) -> None:
    async def break_off(stream: ScriptedStream) -> None:
        await stream.put(Accepted(7, 0))
        await stream.put(Delta("Hal", (1,)))
        await stream.fail(StreamBroken("Gone."))

    nodes[0].script = break_off
    reply = await pair.run(BODY)
    assert reply.json["result"]["response"] == "Hello"


@pytest.mark.parametrize("route", ["run", "chat"])
async def test_after_the_first_byte_an_error_is_an_event_and_there_is_no_done(
    pair: RunningGateway, nodes: list[ScriptedNode], route: str
) -> None:
    async def break_off(stream: ScriptedStream) -> None:
        await stream.put(Accepted(7, 0))
        await stream.put(Delta("Hal", (1,)))
        await asyncio.sleep(0.05)
        await stream.fail(InvariantBroken("Gone."))  # no other node could do better

    nodes[0].script = break_off
    if route == "run":
        reply = await pair.run(STREAM)
        assert reply.events[0] == {"response": "Hal"}
    else:
        messages = [{"role": "user", "content": "Hi"}]
        reply = await pair.chat({"model": MODEL, "messages": messages, "stream": True})
        assert reply.events[-1]["error"]["code"] == "internal_error"
    assert reply.status == 200
    assert reply.events[-1]["errors"] == [{"code": 7500, "message": "Gone."}]
    assert "[DONE]" not in reply.events
    assert nodes[1].streams == []


async def test_data_never_leaves_the_regions_that_an_account_allows(
    pair: RunningGateway, nodes: list[ScriptedNode]
) -> None:
    tenant = await pair.add_tenant(regions=["enam"])
    free = await pair.add_tenant()
    for _ in range(4):
        reply = await pair.run(BODY, tenant=tenant)
        assert (reply.status, reply.headers["x-hearth-region"]) == (200, "enam")
    assert nodes[0].streams == []
    # The control: without the rule the first node is the one that is chosen.
    assert (await pair.run(BODY, tenant=free)).headers["x-hearth-region"] == "weur"
    # Nor does it leave them when its own node is full, broken or gone.
    nodes[1].script = refuse(PoolSaturated("Full."))
    assert (await pair.run(BODY, tenant=tenant)).status == 429
    await nodes[1].stop()
    gone = await pair.run(BODY, tenant=tenant)
    assert gone.status in (429, 502, 503)
    assert all(s.grant.account_id != tenant.account_id for s in nodes[0].streams)
    await nodes[1].start()


@pytest.mark.parametrize("regions", [["apac"], []])
async def test_no_lawful_region_is_a_residency_error_and_never_a_fallback(
    pair: RunningGateway, nodes: list[ScriptedNode], regions: list[str]
) -> None:
    tenant = await pair.add_tenant(regions=regions)
    reply = await pair.run(BODY, tenant=tenant)
    assert (reply.status, reply.code) == (403, 7403)
    assert nodes[0].streams == nodes[1].streams == []


async def test_a_wait_for_a_place_ends_at_its_deadline(
    tmp_path: Path, database_template: Path, node: ScriptedNode
) -> None:
    async def keep_waiting(stream: ScriptedStream) -> None:
        await stream.aborted.wait()

    node.script = keep_waiting
    limits = {"queue_deadline_s": 0.3}
    async with run_gateway(tmp_path, database_template, [node], limits=limits) as gateway:
        reply = await gateway.run(BODY)
        assert (reply.status, reply.code) == (429, 3040)
        await wait_until(node.streams[0].aborted.is_set)


async def test_what_a_lost_attempt_consumed_is_counted_and_not_told_to_the_client(
    pair: RunningGateway, nodes: list[ScriptedNode]
) -> None:
    async def lose(stream: ScriptedStream) -> None:
        error = to_error_report(StreamBroken("The engine is gone."))
        await stream.put(Failed(error, Usage(7, 0, 30)))

    nodes[0].script = lose
    reply = await pair.run(BODY)
    assert reply.status == 200
    usage = reply.json["result"]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (7, 2)
    # Both attempts kept a node busy: 30 tokens lost, 2 served.
    assert await read_tokens(pair, "prompt") == 14
    assert await read_tokens(pair, "completion") == 32


async def test_what_a_lost_node_had_waits_for_it_to_come_back_and_is_tried_there_once_more(
    tmp_path: Path, database_template: Path, node: ScriptedNode
) -> None:
    async def lose(stream: ScriptedStream) -> None:
        if len(node.streams) < 2:
            node.drop_connections()
        else:
            await stream.answer("Hi")

    node.script = lose
    async with run_gateway(tmp_path, database_template, [node]) as gateway:
        reply = await gateway.run({"prompt": "Hi"})
    assert (reply.status, len(node.streams)) == (200, 2)
