"""A node that takes requests and finds fault with them then: it has failed them."""

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from contracts.adapters import AdapterRef
from contracts.errors import (
    AdapterUnsupported,
    ConstraintUnmet,
    ContextTooLong,
    InvalidRequest,
    PayloadTooLarge,
    PoolSaturated,
    ServiceError,
    StreamBroken,
    UnsupportedFeature,
)
from contracts.ids import NodeId
from contracts.inference import Accepted, Delta
from gateway.attempt_grant import hold_to_word
from gateway.upstream.node_stream import NodeStream, StreamOwner
from tests.gateway.routing.fleet_words import NEED
from tests.gateway.running_gateway import to_bytes
from tests.gateway.scripted_node import Script, ScriptedStream
from tests.gateway.test_continuation import STREAM, go_on, read_text
from tests.gateway.test_money import wait_for_records
from tests.gateway.test_refusing_nodes import ASK, NUM_REQUESTS, RESERVE, open_pair

FAULT = InvalidRequest("The prompt is empty.", param="prompt")
ADAPTER = AdapterRef(weights_sha256=b"d" * 32, num_bytes=64, scale=1.0, rank=8)


def take_and_refuse(error: ServiceError, *, has_begun: bool = False) -> Script:
    """A node that does so at once, or in the middle of the answer."""

    async def script(stream: ScriptedStream) -> None:
        await stream.put(Accepted(7, 0))
        await asyncio.sleep(0.02)  # a stream's client has been told 200 then
        if has_begun:
            await stream.put(Delta("Hal", (11, 12, 13)))
        await stream.fail(error)

    return script


@pytest.mark.parametrize("body", [ASK, STREAM], ids=["whole", "stream"])
@pytest.mark.parametrize(
    "error",
    [FAULT, UnsupportedFeature("Not here."), ContextTooLong("Too long."), PayloadTooLarge("No.")],
    ids=lambda error: error.code,
)
async def test_another_node_answers_and_the_breaker_counts_it(
    tmp_path: Path, database_template: Path, error: ServiceError, body: dict[str, Any]
) -> None:
    async with open_pair(tmp_path, database_template) as (gateway, bad, good):
        bad.script = take_and_refuse(error)
        replies = [await gateway.run(body) for _ in range(NUM_REQUESTS)]
        assert {reply.status for reply in replies} == {200}
        assert {read_text(reply) for reply in replies if body is STREAM} <= {"Hello"}
        assert 0 < len(bad.streams) < RESERVE
        assert len(good.streams) == NUM_REQUESTS


async def test_the_client_pays_once_for_what_two_nodes_took(
    tmp_path: Path, database_template: Path
) -> None:
    async with open_pair(tmp_path, database_template) as (gateway, bad, good):
        bad.script = take_and_refuse(FAULT, has_begun=True)
        assert (await gateway.run(ASK)).status == 200
        assert (len(bad.streams), len(good.streams)) == (1, 1)
        (record,) = await wait_for_records(gateway, 1)
        assert (record.tokens.num_uncached, record.tokens.num_output) == (7, 2)


async def test_an_answer_with_which_fault_is_found_ends_there_and_the_breaker_counts_it(
    tmp_path: Path, database_template: Path
) -> None:
    """Whoever went on from the same tokens might find the same. The client is not blamed for it."""
    async with open_pair(tmp_path, database_template) as (gateway, bad, good):
        bad.script, good.script = take_and_refuse(FAULT, has_begun=True), go_on
        replies = [await gateway.run(STREAM) for _ in range(NUM_REQUESTS)]
        ended = [reply for reply in replies if reply.events[-1] != "[DONE]"]
        assert {reply.events[-1]["errors"][0]["code"] for reply in ended} == {7502}
        assert len(ended) == len(bad.streams) < RESERVE
        assert len(good.streams) == NUM_REQUESTS - len(ended)


@pytest.mark.parametrize("body", [ASK, STREAM], ids=["whole", "stream"])
async def test_answers_that_find_no_way_on_leave_their_node_asked(
    tmp_path: Path, database_template: Path, body: dict[str, Any]
) -> None:
    """The control: schemas that cannot be followed are the client's own."""
    async with open_pair(tmp_path, database_template) as (gateway, near, far):
        near.script = take_and_refuse(ConstraintUnmet("The schema cannot be followed to an end."))
        for _ in range(NUM_REQUESTS):
            await gateway.run(body)
        assert (len(near.streams), len(far.streams)) == (NUM_REQUESTS, 0)


async def test_a_fault_in_a_further_prompt_leaves_the_node_asked(
    tmp_path: Path, database_template: Path
) -> None:
    """The control: prompts are begun one after another, and whoever sends them may err in any."""
    async with open_pair(tmp_path, database_template) as (gateway, near, far):
        for node in (near, far):
            node.max_prompts = 2
            await node.send_report()
        near.script = take_and_refuse(FAULT)
        body = {"model": near.models[0], "prompt": ["Hi", "Ho"]}
        path = gateway.account_path("/ai/v1/completions")
        for _ in range(RESERVE):
            assert (await gateway.send("POST", path, to_bytes(body))).status == 400
        assert (len(near.streams), len(far.streams)) == (RESERVE, 0)


@pytest.mark.parametrize(
    ("error", "changes", "is_held"),
    [
        (FAULT, {}, True),
        (FAULT, {"num_prompts": 2}, False),
        (FAULT, {"adapter": ADAPTER}, True),
        (AdapterUnsupported("Not this one."), {"adapter": ADAPTER}, False),
        (AdapterUnsupported("Not this one."), {}, True),
        (ConstraintUnmet("No way on."), {}, False),
        (PoolSaturated("Full."), {}, False),
    ],
)
def test_a_node_is_held_to_what_it_has_taken_and_to_nothing_else(
    error: ServiceError, changes: dict[str, Any], is_held: bool
) -> None:
    """Neither before it has taken it, nor where the gateway itself has ended the stream."""
    stream = NodeStream(cast("StreamOwner", None), NodeId("n"), 1, 1, 0.0)
    need = replace(NEED, **changes)
    assert hold_to_word(error, stream, need) is error
    stream.push(Accepted(1, 0))
    assert isinstance(hold_to_word(error, stream, need), StreamBroken) == is_held
    stream.is_ours = True
    assert hold_to_word(error, stream, need) is error
