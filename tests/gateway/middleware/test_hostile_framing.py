"""Framing that makes a server hold or mix what it should not: trailers, pipelines, late headers."""

import asyncio
import contextlib
import resource
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.gateway.raw_http import connect, format_request, read_status
from tests.gateway.running_gateway import RunningGateway, run_gateway
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


async def test_a_flood_of_pipelined_requests_ends_and_leaves_no_memory_behind(
    strict: RunningGateway,
) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(3):
        async with connect(strict) as (reader, writer):
            with contextlib.suppress(ConnectionError):
                for _ in range(100):
                    writer.write(LIVE * 2000)
                    await asyncio.wait_for(writer.drain(), 5)
            with contextlib.suppress(ConnectionError):
                await asyncio.wait_for(reader.read(), 10)
    grown_bytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown_bytes < 100_000_000
    async with connect(strict) as (reader, writer):
        writer.write(LIVE)
        assert await read_status(reader) == 200
