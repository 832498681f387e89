"""Errors that quote megabytes reach a gateway as short ones, and no frame is too large for it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import msgspec
import pytest

from contracts import errors
from contracts.inference import Accepted, Failed
from contracts.short_text import MAX_MESSAGE_CHARS
from contracts.wire import MAX_FRAME_BYTES, Abort
from gpu_pool.server.wire import frame_writer
from tests.fixtures.double_node import DoubleNode, run_double_node
from tests.fixtures.gateway_client import GatewayClient, ask, failure_code
from tests.fixtures.node_process import MODEL

NUM_CHARS = 10_000_000


@pytest.fixture
async def node(tmp_path: Path, checkpoint: Path) -> AsyncIterator[DoubleNode]:
    async with run_double_node(tmp_path, checkpoint, "--step-s", "0.01") as running:
        yield running


def ask_oddly() -> bytes:
    """A request whose decoder quotes what it does not know."""
    request = msgspec.to_builtins(ask(MODEL))
    request["tool_choice"] = {"mode": "y" + "x" * NUM_CHARS + "z"}
    return msgspec.msgpack.encode(request)


@pytest.mark.parametrize("is_shortened", [True, False])
async def test_a_refusal_that_quotes_ten_megabytes_ends_its_own_stream_alone(
    node: DoubleNode, is_shortened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control sends what there is, however large the frame: the gateway closes the connection
    over it, and with it every other stream ends.
    """
    if not is_shortened:
        monkeypatch.setattr(errors, "shorten", lambda text, *_: text)
        monkeypatch.setattr(frame_writer, "MAX_FRAME_BYTES", 2 * NUM_CHARS)
    async with GatewayClient(node.address, max_frame_bytes=MAX_FRAME_BYTES) as client:
        other = await client.open(ask(MODEL, max_tokens=3500, ignore_eos=True))
        assert isinstance(await other.next(), Accepted)
        if not is_shortened:
            await client.open(ask_oddly())
            await client.wait_closed()
            assert client.socket.close_code == aiohttp.WSCloseCode.MESSAGE_TOO_BIG
            return
        events = await client.generate(ask_oddly())
        assert failure_code(events) == "invalid_request"
        assert isinstance(events[-1], Failed)
        message = events[-1].error.message
        assert len(message) <= MAX_MESSAGE_CHARS
        assert message.startswith("The request body cannot be decoded: Invalid enum value 'yxxx")
        assert message.endswith("xxxz' - at `$.tool_choice.mode`")
        await other.next()
        await client.send(other, Abort())


async def test_a_model_that_fails_with_ten_megabytes_is_told_of_in_few_words(
    tmp_path: Path, checkpoint: Path
) -> None:
    """Every report has the reason, and every gateway would close the connection over each."""
    options = ("--fails", "--failure-chars", str(NUM_CHARS))
    async with (
        run_double_node(tmp_path, checkpoint, *options, is_ready=False) as node,
        GatewayClient(node.address, max_frame_bytes=MAX_FRAME_BYTES) as client,
    ):
        report = await asyncio.wait_for(client.reports.get(), 30)
        while not report.failed:
            report = await asyncio.wait_for(client.reports.get(), 30)
        (failed,) = report.failed
        assert failed.reason.startswith("the checkpoint is broken!!!")
        assert len(failed.reason) <= MAX_MESSAGE_CHARS
