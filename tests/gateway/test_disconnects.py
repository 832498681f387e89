"""Clients that leave, and clients that do not read: over real sockets, for no other sees either."""

import asyncio
import contextlib
import socket
from pathlib import Path

from contracts.inference import Accepted, Delta, Finished, FinishReason, Usage
from tests.gateway.raw_http import connect, format_request, read_head, read_status
from tests.gateway.running_gateway import RunningGateway, run_gateway, wait_until, wait_until_async
from tests.gateway.scripted_node import ScriptedNode, ScriptedStream, run_node
from tests.gateway.test_continuation import are_known

STREAM = {"prompt": "Hi", "stream": True}
WHOLE = {"prompt": "Hi"}


async def read_metrics(gateway: RunningGateway) -> bytes:
    """What operators see."""
    reply = await gateway.send("GET", "/metrics", api_token=gateway.operator, origin=gateway.admin)
    return reply.body


async def wait_for_abort(stream: ScriptedStream) -> None:
    """A node that never gets further than the queue."""
    await stream.confirm_abort()


async def stream_until_aborted(stream: ScriptedStream) -> None:
    """A node that generates until it is told to stop."""
    await stream.put(Accepted(7, 0))
    while not stream.aborted.is_set():
        await stream.put(Delta("word ", (1,)))
        await asyncio.sleep(0.01)
    await stream.confirm_abort(num_completion=3)


async def test_leaving_before_the_first_byte_aborts_at_once(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    node.script = wait_for_abort
    for body in (STREAM, WHOLE):
        node.streams.clear()
        async with connect(gateway) as (_, writer):
            writer.write(format_request(gateway, body))
            await wait_until(lambda: len(node.streams) == 1)
            await asyncio.sleep(0.05)
            assert not node.streams[0].aborted.is_set()  # the control: it is not aborted anyway
        await wait_until(node.streams[0].aborted.is_set, timeout_s=2)


async def test_leaving_in_mid_stream_aborts_at_once(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    node.script = stream_until_aborted
    async with connect(gateway) as (reader, writer):
        writer.write(format_request(gateway, STREAM))
        assert (await read_head(reader))[0] == 200
        await reader.readuntil(b"word")
        assert not node.streams[0].aborted.is_set()
    await wait_until(node.streams[0].aborted.is_set, timeout_s=2)


async def test_leaving_during_a_whole_answer_aborts_at_once(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    node.script = stream_until_aborted
    async with connect(gateway) as (_, writer):
        writer.write(format_request(gateway, WHOLE))
        await wait_until(lambda: len(node.streams) == 1)
    await wait_until(node.streams[0].aborted.is_set, timeout_s=2)


async def test_a_reset_counts_as_leaving(gateway: RunningGateway, node: ScriptedNode) -> None:
    node.script = wait_for_abort
    loop = asyncio.get_running_loop()
    client = socket.socket()
    client.setblocking(False)
    await loop.sock_connect(client, ("127.0.0.1", gateway.gateway.port))
    await loop.sock_sendall(client, format_request(gateway, WHOLE))
    await wait_until(lambda: len(node.streams) == 1)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.close()
    await wait_until(node.streams[0].aborted.is_set, timeout_s=2)


async def test_a_request_whose_client_stays_is_not_aborted(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    async with connect(gateway) as (reader, writer):
        for _ in range(3):
            writer.write(format_request(gateway, WHOLE))
            assert await read_status(reader) == 200
    assert len(node.streams) == 3
    assert not any(stream.aborted.is_set() for stream in node.streams)


async def test_leaving_with_half_a_body_reaches_no_node(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    request = format_request(gateway, WHOLE)
    async with connect(gateway) as (_, writer):
        writer.write(request[:-5])
        await asyncio.sleep(0.05)
    assert (await gateway.run(WHOLE)).status == 200
    assert len(node.streams) == 1


async def test_the_second_request_on_a_connection_is_watched_as_well(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    async with connect(gateway) as (reader, writer):
        writer.write(format_request(gateway, WHOLE))
        assert await read_status(reader) == 200
        node.script = wait_for_abort
        writer.write(format_request(gateway, WHOLE))
        await wait_until(lambda: len(node.streams) == 2)
    await wait_until(node.streams[1].aborted.is_set, timeout_s=2)


async def test_what_an_aborted_request_consumed_is_counted(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    node.script = stream_until_aborted
    async with connect(gateway) as (reader, writer):
        writer.write(format_request(gateway, STREAM))
        await reader.readuntil(b"word")
    await wait_until(node.streams[0].aborted.is_set)

    async def is_counted() -> bool:
        metrics = await read_metrics(gateway)
        counted = b'tokens_total{kind="completion",model="@hearth/tests/small"} 3.0'
        return counted in metrics and b'status="499"' in metrics

    await wait_until_async(is_counted)


def _never_reads(gateway: RunningGateway) -> socket.socket:
    """A client with a small window that reads nothing."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", gateway.gateway.port))
    client.sendall(format_request(gateway, STREAM))
    return client


async def flood(stream: ScriptedStream) -> None:
    """A node that sends as much as its credit allows, and no more."""
    await stream.put(Accepted(7, 0))
    text = "x" * 100_000
    while not stream.aborted.is_set():
        if stream.credit > 0:
            stream.credit -= 1
            await stream.put(Delta(text, (1,)))
        else:
            stream.credited.clear()
            waits = [
                asyncio.create_task(stream.credited.wait()),
                asyncio.create_task(stream.aborted.wait()),
            ]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
    await stream.put(Finished(FinishReason.ABORTED, Usage(7, 0, 1)))


async def test_a_slow_reader_stops_the_node_and_not_the_gateway(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    node.script = flood
    with contextlib.closing(_never_reads(gateway)):
        await wait_until(lambda: len(node.streams) == 1 and node.streams[0].credit == 0)
        await asyncio.sleep(0.1)
        assert node.streams[0].credit == 0  # no more is asked for while nothing is read
        node.script = _hello
        assert (await gateway.run(WHOLE)).status == 200
    await wait_until(node.streams[0].aborted.is_set)


async def _hello(stream: ScriptedStream) -> None:
    await stream.answer("Hello")


async def test_a_reader_that_keeps_up_gets_ever_more_credit(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    async def send_many(stream: ScriptedStream) -> None:
        await stream.put(Accepted(7, 0))
        for index in range(500):
            while stream.credit == 0:
                stream.credited.clear()
                await stream.credited.wait()
            stream.credit -= 1
            await stream.put(Delta(f"{index} ", (index,)))
        await stream.put(Finished(FinishReason.STOP, Usage(7, 0, 500)))

    node.script = send_many
    reply = await gateway.run(STREAM)
    text = "".join(event["response"] for event in reply.events[:-1])
    assert text == "".join(f"{index} " for index in range(500))


async def test_a_reader_that_takes_nothing_for_too_long_is_cut_off(
    tmp_path: Path, database_template: Path, node: ScriptedNode
) -> None:
    node.script = flood
    limits = {"slow_reader_timeout_s": 0.5}
    async with run_gateway(tmp_path, database_template, [node], limits=limits) as gateway:
        client = _never_reads(gateway)
        with contextlib.closing(client):
            await wait_until(lambda: len(node.streams) == 1)
            await wait_until(node.streams[0].aborted.is_set, timeout_s=8)

        async def is_billed() -> bool:
            counted = b'tokens_total{kind="prompt",model="@hearth/tests/small"} 7.0'
            return counted in await read_metrics(gateway)

        await wait_until_async(is_billed)


async def test_a_quiet_stream_carries_comments_and_a_busy_one_does_not(
    tmp_path: Path, database_template: Path, node: ScriptedNode
) -> None:
    first_token = asyncio.Event()

    async def prefill(stream: ScriptedStream) -> None:
        await stream.put(Accepted(7, 0))
        await first_token.wait()
        await stream.put(Delta("word", (1,)))
        await stream.put(Finished(FinishReason.STOP, Usage(7, 0, 1)))

    node.script = prefill
    limits = {"ping_after_s": 0.001}
    async with (
        run_gateway(tmp_path, database_template, [node], limits=limits) as gateway,
        connect(gateway) as (reader, writer),
    ):
        writer.write(format_request(gateway, STREAM))
        await read_head(reader)
        assert await reader.readuntil(b"\n\n\r\n") == b"8\r\n: ping\n\n\r\n"
        first_token.set()
        rest = await reader.readuntil(b"data: [DONE]\n\n")
        assert b'{"response":"word"}' in rest
        # The control: nothing is sent unasked when the stream is over.
        assert await reader.readuntil(b"0\r\n\r\n") == b"\r\n0\r\n\r\n"
        writer.write(format_request(gateway, WHOLE))
        assert await read_status(reader) == 200


async def test_clients_that_leave_count_against_no_node(
    tmp_path: Path, database_template: Path
) -> None:
    """A node says that it has ended a request once its step is over, which may take it long."""
    is_over = asyncio.Event()

    async def compute(stream: ScriptedStream) -> None:
        await is_over.wait()
        await stream.answer("Hello")

    async with run_node("node-1") as first, run_node("node-2") as second:
        first.script = second.script = compute
        async with run_gateway(tmp_path, database_template, [first, second]) as gateway:
            await wait_until_async(lambda: are_known(gateway, 2))
            async with contextlib.AsyncExitStack() as stack:
                for _ in range(12):
                    _, writer = await stack.enter_async_context(connect(gateway))
                    writer.write(format_request(gateway, WHOLE))
                await wait_until(lambda: len(first.streams) + len(second.streams) == 12)
            pool = gateway.gateway._pool  # type: ignore[reportPrivateUsage]
            assert pool.links.num_streams == 12
            await wait_until(lambda: pool.links.num_streams == 0, timeout_s=30)
            await asyncio.sleep(0.1)
            assert not pool.fleet.health.list_concerned()
            is_over.set()
            assert (await gateway.run(WHOLE)).status == 200
