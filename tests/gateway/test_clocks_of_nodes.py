"""A node whose clock is ahead takes every deadline for passed: it is no end of the requests. Where
all nodes do so, it is the gateway's clock that is behind.
"""

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from contracts.errors import DeadlineExceeded
from contracts.inference import Accepted, Delta
from gateway.sources import create_sources
from tests.gateway import running_gateway
from tests.gateway.running_gateway import run_gateway, wait_until_async
from tests.gateway.scripted_node import ScriptedStream, run_node
from tests.gateway.test_continuation import STREAM, are_known, go_on, read_text

LATE = DeadlineExceeded("The request's deadline has passed.")


@pytest.mark.parametrize("has_begun", [True, False])
async def test_a_node_whose_clock_is_ahead_is_left_for_another(
    tmp_path: Path, database_template: Path, has_begun: bool
) -> None:
    async def cut(stream: ScriptedStream) -> None:
        if has_begun:
            await stream.put(Accepted(7, 0))
            await stream.put(Delta("Hal", (11, 12, 13)))
            await asyncio.sleep(0.1)  # the client has been told 200 then
        await stream.fail(LATE)

    async with run_node("node-1", "weur") as ahead, run_node("node-2", "weur") as other:
        ahead.script, other.script = cut, go_on
        async with run_gateway(tmp_path, database_template, [ahead, other]) as gateway:
            await wait_until_async(lambda: are_known(gateway, 2))
            texts = {read_text(await gateway.run(STREAM)) for _ in range(30)}
            assert texts <= {"Hallo", "lo"}
            assert ("Hallo" in texts) is has_begun
            assert 0 < len(ahead.streams) < 25  # its breaker counts it
            assert len(other.streams) == 30


async def test_a_deadline_that_is_over_ends_the_request(
    tmp_path: Path, database_template: Path
) -> None:
    """The control: both clocks agree, and nobody else is asked."""

    async def keep_it_to_its_end(stream: ScriptedStream) -> None:
        await asyncio.sleep(1.1)
        await stream.fail(LATE)

    limits = {"request_deadline_s": 1.5}
    async with run_node("node-1", "weur") as slow, run_node("node-2", "weur") as other:
        slow.script = other.script = keep_it_to_its_end
        nodes = [slow, other]
        async with run_gateway(tmp_path, database_template, nodes, limits=limits) as gateway:
            await wait_until_async(lambda: are_known(gateway, 2))
            reply = await gateway.run(STREAM)
            assert (reply.status, len(slow.streams) + len(other.streams)) == (408, 1)


@pytest.mark.parametrize("behind_s", [700, 0], ids=["behind", "the control"])
async def test_a_gateway_whose_clock_is_behind_says_so_and_blames_no_node(
    tmp_path: Path, database_template: Path, monkeypatch: pytest.MonkeyPatch, behind_s: int
) -> None:
    sources = replace(create_sources(), unix_s=lambda: time.time() - behind_s)
    monkeypatch.setattr(running_gateway, "create_sources", lambda: sources)
    is_right = behind_s == 0

    async def keep_deadline(stream: ScriptedStream) -> None:
        is_over = stream.grant.deadline_unix_ms < time.time() * 1000
        await (stream.fail(LATE) if is_over and not is_set_right.is_set() else stream.answer("Hi"))

    is_set_right = asyncio.Event()
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(run_node(f"node-{n}", "weur")) for n in range(4)]
        for node in nodes:
            node.script = keep_deadline
        gateway = await stack.enter_async_context(run_gateway(tmp_path, database_template, nodes))
        await wait_until_async(lambda: are_known(gateway, 4))
        statuses = {(await gateway.run({"prompt": "Hi"})).status for _ in range(30)}
        assert statuses == {200 if is_right else 502}
        assert sum(len(node.streams) for node in nodes) < 40  # nobody is asked in vain
        pool = gateway.gateway._pool  # type: ignore[reportPrivateUsage]
        assert not pool.fleet.health.list_concerned()
        ready = await gateway.send("GET", "/health/ready", api_token=None)
        assert ready.status == (200 if is_right else 503)
        is_set_right.set()
        assert (await gateway.run({"prompt": "Hi"})).status == 200
        ready = await gateway.send("GET", "/health/ready", api_token=None)
        assert ready.status == 200
