"""How streams leave: the head with what there is to say at once, and nothing behind a failure."""

import asyncio
import socket
import struct
from types import SimpleNamespace
from typing import Any, cast

import pytest

from contracts.ids import NodeId
from contracts.inference import Accepted, Delta, Finished, FinishReason, Usage
from gateway.answering import EventPump
from gateway.upstream.node_stream import NodeStream
from tests.gateway.raw_http import connect, format_request
from tests.gateway.running_gateway import RunningGateway
from tests.gateway.scripted_node import MODEL, ScriptedNode, ScriptedStream

MESSAGES = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "stream": True}
_NUM_DATA_SEGMENTS_AT = 152
"""Where `tcpi_data_segs_in` lies in Linux's `struct tcp_info`."""


def count_segments(writer: asyncio.StreamWriter) -> int:
    """Segments with data that have come on a connection: one for each short write of its peer."""
    info = writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
    return struct.unpack_from("I", info, _NUM_DATA_SEGMENTS_AT)[0]


async def test_the_head_leaves_with_the_first_events_and_each_text_by_itself(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    goes_on = [asyncio.Event(), asyncio.Event()]

    async def answer(stream: ScriptedStream) -> None:
        await stream.put(Accepted(7, 0))
        await goes_on[0].wait()
        await stream.put(Delta("word", (1,)))
        await goes_on[1].wait()
        await stream.put(Finished(FinishReason.STOP, Usage(7, 0, 1)))

    node.script = answer
    async with connect(gateway) as (reader, writer):
        path = gateway.account_path("/ai/v1/chat/completions")
        writer.write(format_request(gateway, MESSAGES, path=path))
        assert b'"role":"assistant"' in await reader.readuntil(b"\n\n\r\n")
        assert count_segments(writer) == 1
        goes_on[0].set()
        assert b'"content":"word"' in await reader.readuntil(b"\n\n\r\n")
        assert count_segments(writer) == 2  # the control: another write is another segment
        goes_on[1].set()
        await reader.readuntil(b"0\r\n\r\n")
        assert count_segments(writer) == 3


class _Owner:
    """A connection to a node that tells listeners at once."""

    def note(self, listener: Any) -> None:
        listener()


class _Exchange(SimpleNamespace):
    """A client that reads everything."""

    def __init__(self) -> None:
        super().__init__(flow=SimpleNamespace(write_paused=False), sent=[])

    def start_events(self, _headers: bytes, events: bytes) -> None:
        self.sent.append(events)

    def send_events(self, events: bytes) -> None:
        self.sent.append(events)

    def watch_writable(self, _on_writable: Any) -> None:
        pass


class _Renderer:
    """Fails at one word."""

    def begin(self, _accepted: Accepted) -> bytes:
        return b"begin"

    def render_text(self, text: str) -> bytes:
        if text == "bad":
            raise ValueError(text)
        return text.encode()


@pytest.mark.parametrize(
    ("texts", "sent"),
    [(("a", "bad", "c"), [b"begin", b"a"]), (("bad", "c"), [b"begin"])],
    ids=["later", "at once"],
)
async def test_nothing_follows_a_text_that_cannot_be_rendered(
    texts: tuple[str, ...], sent: list[bytes]
) -> None:
    stream = NodeStream(cast("Any", _Owner()), NodeId("n"), 1, 1, 0.0)
    accepted = Accepted(1, 0)
    stream.push(accepted)
    exchange = _Exchange()
    forwarded = SimpleNamespace(events=stream.take_now(), stream=stream)
    pump = EventPump(
        cast("Any", exchange), cast("Any", _Renderer()), cast("Any", forwarded), lambda: None
    )
    running = asyncio.create_task(pump.run(cast("Any", None), cast("Any", None), b""))
    await asyncio.sleep(0)
    for text in texts:  # before the task has a turn
        stream.push_text(Delta(text, (1,)))
    with pytest.raises(ValueError, match="bad"):
        await running
    assert exchange.sent == sent
