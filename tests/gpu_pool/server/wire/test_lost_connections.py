"""How a connection has ended is what the node's log says, and nothing else."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import WebSocketError
from structlog.testing import capture_logs

from contracts.wire import MAX_FRAME_BYTES, encode_frame
from gpu_pool.server import http_app
from gpu_pool.server.wire.connection import ProtocolError, explain_error
from tests.fixtures.double_node import DoubleNode, run_double_node
from tests.fixtures.gateway_client import GatewayClient
from tests.gateway.running_gateway import wait_until

ENDS = {"a connection was lost", "a connection was closed"}


@pytest.fixture
async def node(
    tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[DoubleNode]:
    """One that soon asks whether a gateway is there."""
    monkeypatch.setattr(http_app, "HEARTBEAT_S", 0.5)
    async with run_double_node(tmp_path, checkpoint) as opened:
        yield opened


async def wait_for_end(lines: list[Any]) -> dict[str, Any]:
    """What the log says of the connection's end."""
    await wait_until(lambda: any(line["event"] in ENDS for line in lines))
    (line,) = [line for line in lines if line["event"] in ENDS]
    return line


async def test_a_gateway_that_stands_still_is_said_to_stand_still(node: DoubleNode) -> None:
    with capture_logs() as lines:
        client = GatewayClient(node.address)
        try:
            hello = await client.connect()
            await client.send_frame(
                encode_frame([(0, 0, hello)])
            )  # and then it reads nothing any more
            line = await wait_for_end(lines)
        finally:
            await client.close()
    assert line["event"] == "a connection was lost"
    assert line["reason"] == "It answers no pings: it stands still, or cannot be reached."


async def test_a_gateway_that_answers_pings_stays(node: DoubleNode) -> None:
    """The control."""
    with capture_logs() as lines:
        async with GatewayClient(node.address):
            await asyncio.sleep(1.5)
    assert [line for line in lines if line["event"] in ENDS] == []


async def test_a_text_is_no_frame(node: DoubleNode) -> None:
    with capture_logs() as lines:
        async with GatewayClient(node.address) as client:
            await client.socket.send_str("frames are binary")
            line = await wait_for_end(lines)
    assert (line["event"], line["reason"]) == (
        "a connection was closed",
        "Frames are binary messages.",
    )


async def test_a_message_that_is_too_large_is_called_so(node: DoubleNode) -> None:
    with capture_logs() as lines:
        async with GatewayClient(node.address) as client:
            with contextlib.suppress(ConnectionError):  # it need not hear all of it
                await client.socket.send_bytes(bytes(MAX_FRAME_BYTES + 1))
            line = await wait_for_end(lines)
    assert line["event"] == "a connection was closed"
    assert "exceeds limit" in line["reason"]


def test_each_end_has_its_words() -> None:
    assert isinstance(explain_error(WebSocketError(1002, "reserved bits")), ProtocolError)
    lost = explain_error(ConnectionResetError("reset"))
    assert isinstance(lost, ConnectionError)
    assert str(lost) == "ConnectionResetError: reset"
