"""What one streamed event costs between a node's frame and the client's socket, without either.

`python -m benchmarks.gateway.bench_event [--streams 256 4096]`. One process: a real connection to a
node reads frames that bring every stream one piece of text, as a node's steps do, and real answers
render and send them to sockets that swallow all. With 4,096 streams what an event touches is in no
cache near the core, as in a gateway beside other processes. Appends to
`results/gateway_overhead.csv`.
"""

import argparse
import asyncio
import time
from collections import deque
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import uvloop
from uvicorn.protocols.http.flow_control import FlowControl

from benchmarks.harness import (
    Figure,
    append_figures,
    describe_circumstances,
    print_figures,
    summarise,
)
from contracts.grant import Grant, RetentionClass
from contracts.ids import AccountId, ModelName, NodeId, RequestId
from contracts.inference import Accepted, Delta
from contracts.wire import Hello, encode_frame
from gateway.answering import EventPump
from gateway.dialects.chat_replies import ChatForm
from gateway.dialects.dialect import ReplyHead
from gateway.middleware.exchange import Carrier, HttpExchange
from gateway.sources import create_sources, settle_memory
from gateway.upstream.connection import NodeConnection, StreamBounds

RESULTS = "gateway_overhead.csv"
PACKAGES = ("uvloop", "msgspec")
MODEL = ModelName("@hearth/fake/paced")
ID = RequestId("019a0000-0000-7000-8000-000000000000")
NUM_WARM, NUM_MEASURED = 4, 10_000
"""Frames before, and events of a sample."""


class _Socket:
    """A node's, whose frames are those that were put into it."""

    def __init__(self) -> None:
        self.frames: deque[bytes] = deque()
        self._news = asyncio.Event()
        self.is_read = asyncio.Event()

    def put(self, frames: list[bytes]) -> None:
        """Has them read next."""
        self.frames.extend(frames)
        self._news.set()

    async def receive(self) -> Any:
        """The next frame."""
        while not self.frames:
            self.is_read.set()
            self._news.clear()
            await self._news.wait()
        return SimpleNamespace(type=aiohttp.WSMsgType.BINARY, data=self.frames.popleft())

    async def send_bytes(self, _frame: bytes) -> None:
        """Nobody reads what we say."""

    async def close(self) -> None:
        """There is nothing to close."""


class _Transport:
    """A client's socket that takes everything."""

    def write(self, _data: bytes) -> None:
        """Takes it."""


def _start_answer(connection: NodeConnection) -> "asyncio.Task[int]":
    """One more client that waits for events."""
    grant = Grant(
        *(
            ID,
            1,
            AccountId("0" * 32),
            b"s" * 32,
            MODEL,
            None,
            0,
            RetentionClass.STANDARD,
            2**50,
            100,
        )
    )
    stream = connection.open(grant, b"")
    transport = cast("Any", _Transport())
    carrier = SimpleNamespace(
        headers=[],
        expect_100_continue=False,
        is_coded=False,
        limits=None,
        parser=SimpleNamespace(should_keep_alive=lambda: True),
        transport=transport,
        flow=FlowControl(transport),
        format_default_headers=bytes,
    )
    exchange = HttpExchange(cast("Carrier", carrier), b"POST", "/", b"", "1.1")
    renderer = ChatForm().create_renderer(ReplyHead(ID, MODEL, 1_763_000_000))
    forwarded = cast("Any", SimpleNamespace(events=[Accepted(32, 0)], stream=stream))
    stream.push(Accepted(32, 0))
    stream.take_now()
    pump = EventPump(exchange, renderer, forwarded, lambda: None)
    return asyncio.create_task(pump.run(cast("Any", None), cast("Any", None), b""))


async def measure(num_streams: int, num_samples: int) -> list[float]:
    """Microseconds of CPU per event, of each sample."""
    socket = _Socket()
    listener = cast("Any", SimpleNamespace(on_lost=lambda _: None))
    bounds = StreamBounds(1e9, 1e9, 1e9)
    link = cast("Any", socket)
    connection = NodeConnection(NodeId("n"), link, b"k" * 32, bounds, listener, create_sources())
    serving = asyncio.create_task(connection.run(Hello("")))
    answers = [_start_answer(connection) for _ in range(num_streams)]
    await asyncio.sleep(0.1)
    samples: list[float] = []
    num_frames = max(NUM_MEASURED // num_streams, 2)
    for number in range(-1, num_samples):
        first = 1000 + number * num_frames
        steps = range(first, first + (num_frames if number >= 0 else NUM_WARM))
        frames = [
            encode_frame([(at, 1, Delta(" word", (step,))) for at in range(1, num_streams + 1)])
            for step in steps
        ]
        socket.is_read.clear()
        began_ns = time.thread_time_ns()
        socket.put(frames)
        await socket.is_read.wait()
        if number < 0:
            settle_memory()
        else:
            took_ns = time.thread_time_ns() - began_ns
            samples.append(took_ns / num_frames / num_streams / 1000)
    for task in (serving, *answers):
        task.cancel()
    await asyncio.gather(serving, *answers, return_exceptions=True)
    return samples


def main() -> None:
    """Measures, prints and appends."""
    parser = argparse.ArgumentParser(prog="bench_event")
    parser.add_argument("--streams", type=int, nargs="*", default=[256, 4096])
    parser.add_argument("--samples", type=int, default=50)
    parser.add_argument("--dry", action="store_true", help="append nothing")
    options = parser.parse_args()
    figures: list[Figure] = []
    for num_streams in options.streams:
        samples = uvloop.run(measure(num_streams, options.samples))
        metric = "CPU from frame to socket per event"
        figures.append(summarise("event", "hearth", metric, "us", num_streams, samples))
    print_figures(figures)
    if not options.dry:
        print(append_figures(RESULTS, figures, describe_circumstances(PACKAGES)))


if __name__ == "__main__":
    main()
