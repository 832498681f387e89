"""Connections that misbehave before there is any request to speak of."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.gateway.raw_http import connect, format_request, read_status
from tests.gateway.running_gateway import RunningGateway, run_gateway, wait_until
from tests.gateway.scripted_node import ScriptedNode, ScriptedStream

BODY = {"prompt": "Hi"}
LIMITS = {
    "header_timeout_s": 0.5,
    "body_timeout_s": 0.5,
    "keep_alive_s": 2,
    "max_header_bytes": 8192,
    "max_concurrent_requests": 4,
    "max_connections": 20,
}


@pytest.fixture
async def strict(
    tmp_path: Path, database_template: Path, node: ScriptedNode
) -> AsyncGenerator[RunningGateway]:
    """A gateway with tight limits."""
    async with run_gateway(tmp_path, database_template, [node], limits=LIMITS) as gateway:
        yield gateway


async def measure_until_closed(reader: asyncio.StreamReader) -> float:
    """Seconds until the gateway closes the connection."""
    begun_s = time.monotonic()
    with contextlib.suppress(ConnectionError):
        await asyncio.wait_for(reader.read(), timeout=15)
    return time.monotonic() - begun_s


async def _send_for_ever(writer: asyncio.StreamWriter) -> None:
    """Goes on with a body, a little at a time."""
    while True:
        writer.write(b"a" * 1000)
        await writer.drain()
        await asyncio.sleep(0.02)


async def test_headers_that_never_end_are_431(strict: RunningGateway) -> None:
    async with connect(strict) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\n")
        for index in range(10):
            writer.write(b"x-%d: %b\r\n" % (index, b"a" * 1000))
            await writer.drain()
            await asyncio.sleep(0.01)
        assert (await reader.read()).startswith(b"HTTP/1.1 431 ")


async def test_headers_within_the_bound_are_read(strict: RunningGateway) -> None:
    async with connect(strict) as (reader, writer):
        writer.write(format_request(strict, BODY, headers=f"x-long: {'a' * 4000}\r\n"))
        assert await read_status(reader) == 200


@pytest.mark.parametrize("sent", [b"", b"GET / HTT", b"GET / HTTP/1.1\r\nhost: x\r\n"])
async def test_a_client_that_does_not_finish_its_headers_is_cut_off(
    strict: RunningGateway, sent: bytes
) -> None:
    async with connect(strict) as (reader, writer):
        writer.write(sent)
        assert 0.4 < await measure_until_closed(reader) < 8


async def test_a_body_that_does_not_come_is_408(strict: RunningGateway, node: ScriptedNode) -> None:
    async with connect(strict) as (reader, writer):
        writer.write(format_request(strict, BODY)[:-3])
        assert await read_status(reader) == 408
    assert node.streams == []


async def test_an_idle_connection_is_closed_and_a_busy_one_is_not(strict: RunningGateway) -> None:
    async with connect(strict) as (reader, writer):
        for _ in range(4):
            writer.write(format_request(strict, BODY))
            assert await read_status(reader) == 200
            await asyncio.sleep(0.7)  # 2.8 s in all, more than it may idle at a time
        assert 0.4 < await measure_until_closed(reader) < 8


async def test_a_refused_body_is_read_for_a_while_and_then_no_more(
    strict: RunningGateway,
) -> None:
    head = format_request(strict, b"").replace(b"content-length: 0", b"content-length: 90000000")
    async with connect(strict) as (reader, writer):
        writer.write(head)
        assert await read_status(reader) == 413
        with pytest.raises(ConnectionError):
            await asyncio.wait_for(_send_for_ever(writer), timeout=20)


async def test_more_requests_than_may_be_open_are_429(
    strict: RunningGateway, node: ScriptedNode
) -> None:
    release = asyncio.Event()

    async def wait(stream: ScriptedStream) -> None:
        await release.wait()
        await stream.answer("Hello")

    node.script = wait
    held = [asyncio.create_task(strict.run(BODY)) for _ in range(4)]
    await wait_until(lambda: len(node.streams) == 4)
    refused = await strict.run(BODY)
    assert (refused.status, refused.code) == (429, 3040)
    release.set()
    assert [(await task).status for task in held] == [200] * 4
    assert (await strict.run(BODY)).status == 200


async def test_pipelined_requests_are_answered_in_order(
    strict: RunningGateway, node: ScriptedNode
) -> None:
    async def echo(stream: ScriptedStream) -> None:
        await stream.answer(stream.request.prompt.messages[0].content)  # type: ignore[union-attr]

    node.script = echo
    async with connect(strict) as (reader, writer):
        writer.write(b"".join(format_request(strict, {"prompt": f"n{i}"}) for i in range(4)))
        for index in range(4):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = int(head.split("content-length: ")[1].split("\r\n")[0])
            assert f'"n{index}"' in (await reader.readexactly(length)).decode()


async def test_a_client_may_ask_first_whether_to_send(strict: RunningGateway) -> None:
    request = format_request(strict, BODY, headers="expect: 100-continue\r\n")
    head, _, body = request.partition(b"\r\n\r\n")
    async with connect(strict) as (reader, writer):
        writer.write(head + b"\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        writer.write(body)
        assert await read_status(reader) == 200


async def test_a_client_that_wants_the_connection_closed_gets_that(strict: RunningGateway) -> None:
    async with connect(strict) as (reader, writer):
        writer.write(format_request(strict, BODY, headers="connection: close\r\n"))
        answer = await asyncio.wait_for(reader.read(), 5)
        assert b"connection: close" in answer.lower()
        assert answer.endswith(b"}")


async def test_what_is_not_http_is_400(strict: RunningGateway) -> None:
    async with connect(strict) as (reader, writer):
        writer.write(b"\x16\x03\x01 hello\r\n\r\n")
        assert await read_status(reader) == 400
