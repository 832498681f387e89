"""A node that does not take a gateway's word for what a request may do is the node's trouble."""

import asyncio
from pathlib import Path

import pytest

from contracts.errors import (
    AccountSuspended,
    Forbidden,
    InvalidRequest,
    ResidencyViolation,
    ServiceError,
)
from contracts.inference import Accepted, Delta
from tests.gateway.running_gateway import run_gateway, wait_until_async
from tests.gateway.scripted_node import Script, ScriptedStream, run_node
from tests.gateway.test_continuation import STREAM, are_known, go_on, read_text

NUM_REQUESTS = 30


def refuse(error: ServiceError, *, has_begun: bool = False) -> Script:
    """A node that answers so, to begin with or in the middle."""

    async def script(stream: ScriptedStream) -> None:
        if has_begun:
            await stream.put(Accepted(7, 0))
            await stream.put(Delta("Hal", (11, 12, 13)))
            await asyncio.sleep(0.1)  # the client has been told 200 then
        await stream.fail(error)

    return script


@pytest.mark.parametrize("has_begun", [True, False])
@pytest.mark.parametrize(
    "error",
    [
        Forbidden("The grant has been used on this connection."),
        ResidencyViolation("This node is in region apac."),
        AccountSuspended("Not this account."),
    ],
    ids=lambda error: error.code,
)
async def test_another_node_answers_and_the_breaker_counts_it(
    tmp_path: Path, database_template: Path, error: ServiceError, has_begun: bool
) -> None:
    async with run_node("node-1", "weur") as stubborn, run_node("node-2", "weur") as other:
        stubborn.script, other.script = refuse(error, has_begun=has_begun), go_on
        async with run_gateway(tmp_path, database_template, [stubborn, other]) as gateway:
            await wait_until_async(lambda: are_known(gateway, 2))
            texts = {read_text(await gateway.run(STREAM)) for _ in range(NUM_REQUESTS)}
            assert texts <= {"Hallo", "lo"}
            assert ("Hallo" in texts) is has_begun
            assert 0 < len(stubborn.streams) < NUM_REQUESTS - 5
            assert len(other.streams) == NUM_REQUESTS


async def test_where_no_other_node_is_left_the_client_is_not_blamed(
    tmp_path: Path, database_template: Path
) -> None:
    async with run_node("node-1", "weur") as stubborn:
        stubborn.script = refuse(Forbidden("The grant has been used on this connection."))
        async with run_gateway(tmp_path, database_template, [stubborn]) as gateway:
            await wait_until_async(lambda: are_known(gateway, 1))
            reply = await gateway.run(STREAM)
            assert reply.status >= 500
            assert b"grant has been used" not in reply.body


async def test_what_is_wrong_with_a_request_is_told_as_it_is(
    tmp_path: Path, database_template: Path
) -> None:
    """The control: such an answer is the client's to hear, and nobody else is asked."""
    async with run_node("node-1", "weur") as first, run_node("node-2", "weur") as second:
        first.script = second.script = refuse(InvalidRequest("`top_k` is too large."))
        async with run_gateway(tmp_path, database_template, [first, second]) as gateway:
            await wait_until_async(lambda: are_known(gateway, 2))
            reply = await gateway.run(STREAM)
            assert reply.status == 400
            assert b"`top_k` is too large." in reply.body
            assert len(first.streams) + len(second.streams) == 1
