"""What is no request gets words like any other error, behind the answers to all before it."""

import asyncio
import re
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec
import pytest

from tenancy.permissions import Permission
from tests.gateway.raw_http import connect, format_request, read_status
from tests.gateway.running_gateway import RunningGateway, run_gateway
from tests.gateway.scripted_node import MODEL, ScriptedNode, ScriptedStream

LIVE = b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nhost: x\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n"

UNREADABLE = {
    "no version": (b"GET / HT\r\n\r\n", 400, 5006),
    "a space in the target": (b"GET /a b HTTP/1.1\r\n\r\n", 400, 5006),
    "a target of raw UTF-8": ("GET /\u00e9 HTTP/1.1\r\n\r\n".encode(), 400, 5006),
    "a target that is no path": (b"GET foo HTTP/1.1\r\n\r\n", 400, 5006),
    "a target without a path": (b"GET http://x HTTP/1.1\r\n\r\n", 400, 5006),
    "no target": (b"GET  HTTP/1.1\r\n\r\n", 400, 5006),
    "a tunnel": (b"CONNECT x:443 HTTP/1.1\r\nhost: x\r\n\r\n", 400, 5006),
    "no colon": (b"GET / HTTP/1.1\r\nfoo\r\n\r\n", 400, 5006),
    "a space before the colon": (POST + b"content-length : 3\r\n\r\nabc", 400, 5006),
    "NUL in a value": (b"GET / HTTP/1.1\r\na: b\0c\r\n\r\n", 400, 5006),
    "NUL in a name": (b"GET / HTTP/1.1\r\na\0: b\r\n\r\n", 400, 5006),
    "a bare line feed": (b"GET / HTTP/1.1\na: b\n\n", 400, 5006),
    "a folded line": (b"GET / HTTP/1.1\r\na: b\r\n c\r\n\r\n", 400, 5006),
    "both lengths": (POST + b"content-length: 3\r\n" + CHUNKED + b"\r\n0\r\n\r\n", 400, 5006),
    "both lengths, turned": (POST + CHUNKED + b"content-length: 3\r\n\r\nabc", 400, 5006),
    "two lengths": (POST + b"content-length: 3\r\ncontent-length: 4\r\n\r\nabcd", 400, 5006),
    "a list of lengths": (POST + b"content-length: 3, 3\r\n\r\nabc", 400, 5006),
    "a negative length": (POST + b"content-length: -1\r\n\r\n", 400, 5006),
    "a signed length": (POST + b"content-length: +1\r\n\r\na", 400, 5006),
    "an endless length": (POST + b"content-length: " + b"9" * 40 + b"\r\n\r\n", 400, 5006),
    "chunked, then something": (POST + b"transfer-encoding: chunked, gzip\r\n\r\n", 400, 5006),
    "another coding": (POST + b"transfer-encoding: gzip\r\n\r\nabc", 501, 7501),
    "a coding of old": (POST + b"transfer-encoding: identity\r\n\r\nabc", 501, 7501),
    "the beginning of TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, 5006),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, 7508),
    "a request in HTTP/2.0": (b"GET / HTTP/2.0\r\nhost: x\r\n\r\n", 505, 7508),
    "a version to come": (b"GET / HTTP/3.7\r\nhost: x\r\n\r\n", 505, 7508),
    "the first version": (b"GET /\r\n\r\n", 505, 7508),
    "long headers": (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 4000 + b"\r\n", 431, 7431),
}
"""What is sent, and the status and code that it gets."""

BODIES = {
    "a size that is none": b"zz\r\n",
    "a negative size": b"-1\r\n",
    "a size with a prefix": b"0x1\r\na\r\n0\r\n\r\n",
    "an endless size": b"f" * 40 + b"\r\n",
    "a chunk that is longer than it says": b"1\r\nab\r\n0\r\n\r\n",
    "bare line feeds": b"1\na\n0\n\n",
    "long trailers": b"0\r\n" + b"a: b\r\n" * 4000 + b"\r\n",
}


@pytest.fixture
async def strict(
    tmp_path: Path, database_template: Path, node: ScriptedNode
) -> AsyncGenerator[RunningGateway]:
    """A gateway with a small bound on headers."""
    limits = {"max_header_bytes": 8192}
    async with run_gateway(tmp_path, database_template, [node], limits=limits) as gateway:
        yield gateway


async def read_refusal(reader: asyncio.StreamReader, status: int, code: int) -> str:
    """The message of the answer with which the connection ends, all of whose parts are checked."""
    answer = await asyncio.wait_for(reader.read(), 10)
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.decode().lower().split("\r\n")
    assert lines[0].startswith(f"http/1.1 {status} ")
    headers = dict(line.split(": ", 1) for line in lines[1:])
    assert headers["content-type"] == "application/json"
    assert headers["connection"] == "close"
    assert int(headers["content-length"]) == len(body)
    assert re.fullmatch(r"[0-9a-f-]{36}", headers["x-request-id"])
    assert re.fullmatch(r"[0-9a-f]{16}-[a-z0-9-]+", headers["cf-ray"])
    told = msgspec.json.decode(body)
    assert (told["success"], told["errors"][0]["code"]) == (False, code)
    assert told["error"]["message"].endswith((".", "?"))
    return told["error"]["message"]


@pytest.mark.parametrize(("sent", "status", "code"), UNREADABLE.values(), ids=UNREADABLE.keys())
async def test_what_is_no_request_is_told_so_and_harms_nobody(
    strict: RunningGateway, sent: bytes, status: int, code: int
) -> None:
    async with connect(strict) as (other, writer_of_other):
        async with connect(strict) as (reader, writer):
            writer.write(sent)
            await read_refusal(reader, status, code)
        async with connect(strict) as (reader, writer):  # behind the answers that are due
            writer.write(LIVE * 3 + sent)
            assert [await read_status(reader) for _ in range(3)] == [200] * 3
            await read_refusal(reader, status, code)
        writer_of_other.write(LIVE)
        assert await read_status(other) == 200


@pytest.mark.parametrize("sent", [b"GET /" + b"a" * 9000, b"GET / HTTP/1.1\r\na: " + b"a" * 9000])
async def test_a_target_or_value_without_end_is_too_long(
    strict: RunningGateway, sent: bytes
) -> None:
    async with connect(strict) as (reader, writer):
        writer.write(sent)
        await read_refusal(reader, 431, 7431)


@pytest.mark.parametrize("method", [b"BREW", b"get", b"B"])
async def test_a_method_that_nobody_knows_is_told_apart_from_what_is_no_http(
    strict: RunningGateway, method: bytes
) -> None:
    sent = method + b" /pot HTTP/1.1\r\nhost: x\r\n\r\n"
    async with connect(strict) as (reader, writer):
        writer.write(sent)
        await read_refusal(reader, 501, 7501)
    async with connect(strict) as (reader, writer):  # where it begins is known there alone
        writer.write(LIVE + sent)
        assert await read_status(reader) == 200
        await read_refusal(reader, 400, 5006)


async def test_words_wait_for_an_answer_under_way(
    strict: RunningGateway, node: ScriptedNode
) -> None:
    release = asyncio.Event()

    async def wait(stream: ScriptedStream) -> None:
        await release.wait()
        await stream.answer("Hello")

    node.script = wait
    async with connect(strict) as (reader, writer):
        writer.write(format_request(strict, {"prompt": "Hi"}) + LIVE + b"GET / HTTP/9.9\r\n\r\n")
        await asyncio.sleep(0.2)
        writer.write(LIVE * 100)  # nothing of this is understood any more
        release.set()
        assert [await read_status(reader) for _ in range(2)] == [200] * 2
        await read_refusal(reader, 505, 7508)


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
@pytest.mark.parametrize("num_before", [0, 2])
@pytest.mark.parametrize("rest", [f"/ai/run/{MODEL}", "/tokens"])
async def test_a_body_that_cannot_be_read_is_the_fault_of_its_request(
    strict: RunningGateway, node: ScriptedNode, body: bytes, num_before: int, rest: str
) -> None:
    tenant = await strict.add_tenant(permissions=frozenset(Permission))
    path = strict.account_path(rest, tenant)
    request = format_request(strict, b"", path=path, tenant=tenant, headers=CHUNKED.decode())
    request = request.replace(b"content-length: 0\r\n", b"")
    status, code = (431, 7431) if b"a: b" in body else (400, 5006)
    async with connect(strict) as (reader, writer):
        writer.write(LIVE * num_before + request)
        await writer.drain()
        if not num_before:
            await asyncio.sleep(0.05)  # it is being served by now
        writer.write(body + LIVE)
        assert [await read_status(reader) for _ in range(num_before)] == [200] * num_before
        await read_refusal(reader, status, code)
    assert node.streams == []


async def test_a_client_that_sends_on_for_ever_hears_it_and_is_cut_off(
    strict: RunningGateway,
) -> None:
    async with connect(strict) as (reader, writer):
        for _ in range(100):
            writer.write(b"nonsense " * 10_000)
        await read_refusal(reader, 501, 7501)
        with pytest.raises(ConnectionError):
            await asyncio.wait_for(_send_for_ever(writer), 20)


async def _send_for_ever(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"nonsense " * 100)
        await writer.drain()
        await asyncio.sleep(0.02)


async def test_refusals_are_counted(strict: RunningGateway) -> None:
    async with connect(strict) as (reader, writer):
        writer.write(b"nonsense\r\n\r\n")
        await read_refusal(reader, 400, 5006)
    metrics = await strict.send("GET", "/metrics", api_token=strict.operator, origin=strict.admin)
    assert b'route="unparsed",status="400"' in metrics.body
