"""Framing that makes a server hold or mix what it should not: trailers, pipelines, late headers."""

import asyncio
import contextlib
import resource
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.gateway.raw_http import connect, format_request, read_status
from tests.gateway.running_gateway import RunningGateway, run_gateway, wait_until
from tests.gateway.scripted_node import MODEL, ScriptedNode

LIMITS = {"max_header_bytes": 8192}
BODY = b'{"prompt": "Hi"}'
LIVE = b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.fixture
async def strict(
    tmp_path: Path, database_template: Path, node: ScriptedNode
) -> AsyncGenerator[RunningGateway]:
    """A gateway with a small bound on headers."""
    async with run_gateway(tmp_path, database_template, [node], limits=LIMITS) as gateway:
        yield gateway


def format_chunked(gateway: RunningGateway, headers: str, trailers: bytes) -> bytes:
    """A chunked request with lines behind its body."""
    path = gateway.account_path(f"/ai/run/{MODEL}", gateway.tenant)
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\n{headers}transfer-encoding: chunked\r\n\r\n"
    return head.encode() + b"%x\r\n%b\r\n0\r\n%b\r\n" % (len(BODY), BODY, trailers)


async def test_a_credential_behind_the_body_opens_nothing(strict: RunningGateway) -> None:
    credential = f"Authorization: Bearer {strict.tenant.api_token}\r\n"
    async with connect(strict) as (reader, writer):
        writer.write(format_chunked(strict, "", credential.encode()))
        assert await read_status(reader) == 401
    async with connect(strict) as (reader, writer):  # the control
        writer.write(format_chunked(strict, credential, b"x-checksum: 1\r\n"))
        assert await read_status(reader) == 200


async def test_lines_behind_the_body_count_as_headers_and_end(strict: RunningGateway) -> None:
    async with connect(strict) as (reader, writer):
        writer.write(format_chunked(strict, "", b"a: b\r\n" * 10)[:-2])
        with contextlib.suppress(ConnectionError):
            for _ in range(2000):
                writer.write(b"a: b\r\n" * 1000)
                await writer.drain()
        with contextlib.suppress(ConnectionError):
            await asyncio.wait_for(reader.read(), 5)
        assert reader.at_eof() or reader.exception() is not None


async def test_many_small_headers_in_one_piece_are_refused(strict: RunningGateway) -> None:
    async with connect(strict) as (reader, writer):
        writer.write(b"GET /health/live HTTP/1.1\r\n" + b"a: b\r\n" * 2000 + b"\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 431 ")


async def test_a_long_body_is_not_taken_for_headers(strict: RunningGateway) -> None:
    async with connect(strict) as (reader, writer):
        writer.write(format_request(strict, {"prompt": "a" * 20_000}) + LIVE[:20])
        assert await read_status(reader) == 200
        writer.write(LIVE[20:])
        assert await read_status(reader) == 200


async def test_an_old_client_reads_a_stream_until_the_connection_ends(
    strict: RunningGateway,
) -> None:
    request = format_request(strict, {"prompt": "Hi", "stream": True})
    async with connect(strict) as (reader, writer):
        writer.write(request.replace(b"HTTP/1.1", b"HTTP/1.0", 1))
        answer = await asyncio.wait_for(reader.read(), 10)
    head, _, events = answer.partition(b"\r\n\r\n")
    assert b"chunked" not in head
    assert events.startswith(b"data: ")
    assert events.endswith(b"data: [DONE]\n\n")


async def test_pipelined_requests_are_answered_in_order(strict: RunningGateway) -> None:
    async with connect(strict) as (reader, writer):
        writer.write((LIVE + LIVE.replace(b"live", b"nope")) * 20)
        assert [await read_status(reader) for _ in range(40)] == [200, 404] * 20


async def test_a_flood_of_pipelined_requests_waits_outside_and_leaves_no_memory_behind(
    strict: RunningGateway,
) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(3):
        async with connect(strict) as (reader, writer):
            with contextlib.suppress(ConnectionError, TimeoutError):
                for _ in range(100):
                    writer.write(LIVE * 2000)
                    await asyncio.wait_for(writer.drain(), 1)  # who reads nothing, sends no more
            assert await read_status(reader) == 200
            writer.transport.abort()  # else it would wait until all of its own was taken
    grown_bytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown_bytes < 100_000_000
    async with connect(strict) as (reader, writer):
        writer.write(LIVE)
        assert await read_status(reader) == 200


UPGRADES = {
    "h2c": "connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n",
    "websocket": "connection: keep-alive, upgrade\r\nupgrade: websocket\r\n",
    "two": "connection: upgrade\r\nupgrade: h2c\r\nupgrade: tls/1.0\r\n",
}


@pytest.mark.parametrize("headers", UPGRADES.values(), ids=UPGRADES.keys())
async def test_a_request_that_wants_another_protocol_is_served_in_this_one(
    strict: RunningGateway, node: ScriptedNode, headers: str
) -> None:
    request = format_request(strict, BODY, headers=headers)
    async with connect(strict) as (reader, writer):
        writer.write(request[:-5])
        await writer.drain()
        await asyncio.sleep(0.05)  # the body comes in two pieces
        writer.write(request[-5:] + LIVE + request)
        assert [await read_status(reader) for _ in range(3)] == [200, 200, 200]
    assert [stream.request.prompt.messages[0].content for stream in node.streams] == ["Hi"] * 2


async def test_the_wish_for_another_protocol_hides_nothing(strict: RunningGateway) -> None:
    wish = UPGRADES["h2c"]
    unauthenticated = format_request(strict, BODY, headers=wish).replace(b"Bearer", b"Nobody")
    long = f"x-long: {'a' * 9000}\r\n"
    async with connect(strict) as (reader, writer):
        writer.write(unauthenticated)
        assert await read_status(reader) == 401
    for request in (
        format_request(strict, BODY, headers=wish + long),
        format_request(strict, BODY, headers=wish + "transfer-encoding: chunked\r\n"),
        b"CONNECT example.org:443 HTTP/1.1\r\nhost: example.org\r\n\r\n" + BODY,
    ):
        async with connect(strict) as (reader, writer):
            writer.write(request)
            status = int((await asyncio.wait_for(reader.read(), 10)).split(b" ", 2)[1])
            assert status in (400, 431)
    async with connect(strict) as (reader, writer):
        writer.write(format_request(strict, BODY, headers=wish) * 300)
        assert [await read_status(reader) for _ in range(300)] == [200] * 300
    assert (await strict.run(BODY)).status == 200


async def test_bodies_of_all_clients_together_are_bounded(
    tmp_path: Path, database_template: Path, node: ScriptedNode
) -> None:
    limits = {"max_body_bytes_in_all": 100_000}
    body = {"prompt": "a" * 60_000}
    async with run_gateway(tmp_path, database_template, [node], limits=limits) as gateway:
        request = format_request(gateway, body)
        for _ in range(3):
            async with connect(gateway) as (
                reader,
                writer,
            ):  # the control: one fits, again and again
                writer.write(request)
                assert await read_status(reader) == 200
        async with connect(gateway) as (_, holding):
            holding.write(request[:-10])
            await holding.drain()
            await wait_until(lambda: held_bytes(gateway) > 50_000)
            async with connect(gateway) as (reader, writer):
                writer.write(request)
                assert await read_status(reader) == 429
        await wait_until(lambda: held_bytes(gateway) == 0)
        async with connect(gateway) as (reader, writer):
            writer.write(request)
            assert await read_status(reader) == 200
        assert held_bytes(gateway) == 0


def held_bytes(gateway: RunningGateway) -> int:
    """What the tenants' port holds of bodies."""
    return gateway.gateway._listeners.tenants.num_body_bytes
