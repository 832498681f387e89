"""Strangers fill no disk: what is no HTTP is answered, and leaves no line in a node's log."""

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from contracts.sections import MetricsSettings
from gpu_pool.server.http_log import create_http_logger
from tests.fixtures.double_node import run_double_node
from tests.fixtures.free_port import find_port

GARBAGE = [
    b"\x16\x03\x01" + b"\0" * 200 + b"\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 9000 + b"\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
]


async def exchange(port: int, content: bytes) -> bytes:
    """The status line that `content` is answered with."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(content)
        return await asyncio.wait_for(reader.readline(), 10)
    finally:
        writer.close()


async def test_what_is_no_http_is_refused_without_a_line(
    tmp_path: Path, checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    metrics_port = find_port()
    metrics = MetricsSettings(port=metrics_port)
    async with run_double_node(tmp_path, checkpoint, metrics=metrics) as node:
        for port in (urlsplit(node.address.url).port or 0, metrics_port):
            for content in GARBAGE:
                assert b" 400 " in await exchange(port, content)
            health = b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n"
            assert b" 400 " not in await exchange(port, health)
    assert [record for record in caplog.records if record.name == "aiohttp.server"] == []


def test_a_defect_of_ours_is_written(caplog: pytest.LogCaptureFixture) -> None:
    """The control."""
    try:
        raise ZeroDivisionError
    except ZeroDivisionError:
        create_http_logger().exception("Error handling request from %s", "somebody")
    assert "ZeroDivisionError" in caplog.text
