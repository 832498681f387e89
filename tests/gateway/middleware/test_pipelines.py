"""Many requests in one piece: all are answered, in order, and none of them makes us hold much."""

import asyncio
import resource
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from gateway.auth.principal_cache import PrincipalCache
from tests.gateway.raw_http import connect, format_request, read_status
from tests.gateway.running_gateway import RunningGateway, run_gateway
from tests.gateway.scripted_node import ScriptedNode, ScriptedStream

LIVE = b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n"
NOWHERE = LIVE.replace(b"live", b"nope")


async def echo(stream: ScriptedStream) -> None:
    """Answers with the prompt."""
    await stream.answer(stream.request.prompt.messages[0].content)  # type: ignore[union-attr]


async def read_body(reader: asyncio.StreamReader) -> bytes:
    """The next answer's body, whose length is announced or which comes in chunks."""
    head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)).decode().lower()
    assert head.startswith("http/1.1 200 ")
    if "content-length: " in head:
        return await reader.readexactly(int(head.split("content-length: ")[1].split("\r\n")[0]))
    body = b""
    while size := int(await reader.readline(), 16):
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readexactly(2)
    return body


@pytest.mark.parametrize("num", [1, 70, 500, 4000])
async def test_requests_in_one_piece_are_answered_in_order(
    gateway: RunningGateway, num: int
) -> None:
    async with connect(gateway) as (reader, writer):
        writer.write((LIVE + NOWHERE) * num)
        answered = [await asyncio.wait_for(read_status(reader), 20) for _ in range(2 * num)]
        assert answered == [200, 404] * num
        writer.write(LIVE)  # and the connection is as good as before
        assert await asyncio.wait_for(read_status(reader), 20) == 200


@pytest.mark.parametrize("num", [70, 500])
async def test_prompts_in_one_piece_are_answered_in_order_one_of_them_as_a_stream(
    gateway: RunningGateway, node: ScriptedNode, num: int
) -> None:
    node.script = echo
    bodies = [{"prompt": f"n{index}.", "stream": index == num // 2} for index in range(num)]
    async with connect(gateway) as (reader, writer):
        writer.write(b"".join(format_request(gateway, body) for body in bodies))
        for index in range(num):
            assert f"n{index}." in (await read_body(reader)).decode()
    assert len(node.streams) == num


async def test_a_request_that_is_cut_by_the_end_of_a_piece_is_read_to_its_end(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    node.script = echo
    bodies = [{"prompt": f"n{index}." + "a" * 7000} for index in range(60)]
    sent = b"".join(format_request(gateway, body) for body in bodies)
    async with connect(gateway) as (reader, writer):
        writer.write(sent[:-9])
        for index in range(59):
            assert f"n{index}." in (await read_body(reader)).decode()
        writer.write(sent[-9:])
        assert "n59." in (await read_body(reader)).decode()


async def test_headers_that_we_do_not_read_are_not_late(
    tmp_path: Path, database_template: Path, node: ScriptedNode
) -> None:
    release = asyncio.Event()

    async def wait(stream: ScriptedStream) -> None:
        await release.wait()
        await stream.answer("Hello")

    node.script = wait
    limits = {"header_timeout_s": 0.5}
    async with (
        run_gateway(tmp_path, database_template, [node], limits=limits) as gateway,
        connect(gateway) as (reader, writer),
    ):
        request = format_request(gateway, {"prompt": "Hi"})
        writer.write(request + LIVE + LIVE[:-5])
        await writer.drain()
        await asyncio.sleep(2.5)  # several looks at who is late
        release.set()
        assert [await asyncio.wait_for(read_status(reader), 10) for _ in range(2)] == [200, 200]
        await asyncio.sleep(0.1)
        writer.write(LIVE[-5:])
        assert await asyncio.wait_for(read_status(reader), 10) == 200


async def test_of_a_body_that_nobody_wants_yet_little_is_read(
    tmp_path: Path, database_template: Path, node: ScriptedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while the database is asked who sends it."""
    is_known = asyncio.Event()
    look_up = PrincipalCache.find

    async def wait_and_look_up(*told: Any) -> Any:
        await is_known.wait()
        return await look_up(*told)

    monkeypatch.setattr(PrincipalCache, "find", wait_and_look_up)
    node.script = lambda stream: stream.answer("Hello")
    limits = {"max_body_bytes": 40_000_000}
    async with (
        run_gateway(tmp_path, database_template, [node], limits=limits) as gateway,
        connect(gateway) as (reader, writer),
    ):
        writer.write(format_request(gateway, {"prompt": "Hi", "ignored": "a" * 39_000_000}))
        await asyncio.sleep(1)
        assert writer.transport.get_write_buffer_size() > 20_000_000
        is_known.set()
        assert await asyncio.wait_for(read_status(reader), 20) == 200


async def send_for_ever(writer: asyncio.StreamWriter, piece: bytes) -> None:
    """Goes on until the other side has had enough."""
    while True:
        writer.write(piece)
        await writer.drain()


@pytest.fixture
async def impatient(
    tmp_path: Path, database_template: Path, node: ScriptedNode
) -> AsyncGenerator[RunningGateway]:
    """A gateway that waits for nobody who does not read."""
    limits = {"slow_reader_timeout_s": 3.0}
    async with run_gateway(tmp_path, database_template, [node], limits=limits) as gateway:
        yield gateway


async def test_a_client_that_reads_none_of_its_answers_gets_few_and_is_cut_off(
    impatient: RunningGateway, node: ScriptedNode
) -> None:
    node.script = lambda stream: stream.answer("a" * 100_000)
    request = format_request(impatient, {"prompt": "Hi"}, headers="idempotency-key: again\r\n")
    async with connect(impatient) as (reader, writer):  # the control: who reads gets all of them
        writer.write(request * 200)
        assert [await read_status(reader) for _ in range(200)] == [200] * 200
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    _, writer = await asyncio.open_connection("127.0.0.1", impatient.gateway.port, limit=1024)
    with pytest.raises(ConnectionError):
        await asyncio.wait_for(send_for_ever(writer, request * 200), 20)
    writer.close()
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 50_000_000
