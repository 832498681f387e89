"""A request has one deadline, however many nodes it has been at."""

import asyncio
from pathlib import Path

import pytest

from contracts.errors import StreamBroken
from contracts.inference import Accepted, Delta
from tests.gateway.running_gateway import run_gateway, wait_until_async
from tests.gateway.scripted_node import ScriptedStream, run_node
from tests.gateway.test_continuation import are_known

DEADLINE_S = 1.5


@pytest.mark.parametrize("has_begun", [True, False], ids=["in mid-stream", "before it"])
@pytest.mark.parametrize("is_late", [True, False], ids=["late", "control: in time"])
async def test_a_request_whose_deadline_is_over_is_brought_to_no_other_node(
    tmp_path: Path, database_template: Path, has_begun: bool, is_late: bool
) -> None:
    limits = {"request_deadline_s": DEADLINE_S}
    async with run_node("node-1", "weur") as one, run_node("node-2", "weur") as other:
        nodes = [one, other]

        async def break_off(stream: ScriptedStream) -> None:
            await stream.put(Accepted(7, 0))
            if has_begun:
                await asyncio.sleep(0.1)  # the client has been told 200 then
                await stream.put(Delta("a", (1,)))
            if len(one.streams) + len(other.streams) > 1:
                await stream.answer("b")
                return
            await asyncio.sleep(DEADLINE_S + 0.5 if is_late else 0.1)
            await stream.fail(StreamBroken("The core was stuck."))

        one.script = other.script = break_off
        async with run_gateway(tmp_path, database_template, nodes, limits=limits) as gateway:
            await wait_until_async(lambda: are_known(gateway, 2))
            reply = await gateway.run({"prompt": "Hi", "stream": has_begun})
            assert len(one.streams) + len(other.streams) == (1 if is_late else 2)
            assert reply.status == (408 if is_late and not has_begun else 200)


async def test_the_next_node_has_no_more_time_than_is_left(
    tmp_path: Path, database_template: Path
) -> None:
    """A node that keeps no deadline is given up a few seconds after that of the request."""
    async with run_node("node-1", "weur") as one, run_node("node-2", "weur") as other:
        nodes = [one, other]

        async def break_off_and_hang(stream: ScriptedStream) -> None:
            if len(one.streams) + len(other.streams) == 1:
                await asyncio.sleep(2.5)
                await stream.fail(StreamBroken("The core was stuck."))
            await stream.aborted.wait()

        one.script = other.script = break_off_and_hang
        limits = {"request_deadline_s": 3}
        async with run_gateway(tmp_path, database_template, nodes, limits=limits) as gateway:
            await wait_until_async(lambda: are_known(gateway, 2))
            task = asyncio.create_task(gateway.run({"prompt": "Hi"}))
            links = gateway.gateway._pool.links._links.values()  # type: ignore[reportPrivateUsage]

            def list_ends() -> list[float]:
                return [
                    stream.ends_s
                    for link in links
                    if link._connection is not None  # type: ignore[reportPrivateUsage]
                    for stream in link._connection._streams.values()  # type: ignore[reportPrivateUsage]
                ]

            async def has_stream() -> bool:
                return bool(list_ends())

            async def is_at_the_next() -> bool:
                return len(one.streams) + len(other.streams) == 2 and bool(list_ends())

            await wait_until_async(has_stream)
            (first,) = list_ends()
            await wait_until_async(is_at_the_next)
            (second,) = list_ends()
            assert second == pytest.approx(first, abs=0.1)
            assert (await task).status == 408
