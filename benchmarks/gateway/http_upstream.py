"""What stands behind the relay: answers in OpenAI's form, with next to no CPU.

A body that asks for a stream gets paced events, any other one completion, a GET (routers look
whether it is there and what it serves) a list of models. The same number of events with about the
same bytes as a gateway before a fake node sends.
`python -m benchmarks.gateway.http_upstream PORT TICK_S NUM_EVENTS`.
"""

import asyncio
import re
import sys
from typing import cast

import httptools
import uvloop

ASKS_FOR_STREAM = re.compile(rb'"stream": ?true')
CHUNK = (
    b'data: {"id":"chatcmpl-019a0000-0000-7000-8000-000000000000","object":"chat.completion.chunk",'
    b'"created":1763000000,"model":"@hearth/fake/paced","choices":[{"index":0,"delta":'
    b'{"content":" word"},"logprobs":null,"finish_reason":null}]}\n\n'
)
DONE = b"data: [DONE]\n\n"
TEXT = b" word" * 40
COMPLETION = (
    b'{"id":"chatcmpl-019a0000-0000-7000-8000-000000000000","created":1763000000,'
    b'"model":"@hearth/fake/quick","choices":[{"message":{"content":"%b","role":"assistant",'
    b'"refusal":null},"finish_reason":"stop","index":0,"logprobs":null}],"usage":{"prompt_tokens":'
    b'32,"completion_tokens":40,"total_tokens":72},"object":"chat.completion"}'
) % TEXT
WHOLE = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    % len(COMPLETION)
) + COMPLETION
STATE = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 58\r\n\r\n"
    b'{"object":"list","data":[{"id":"mock","object":"model"}]}\n'
)
EVENTS_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)


class Upstream(asyncio.Protocol):
    """One connection."""

    def __init__(self, streams: "dict[Upstream, int]") -> None:
        """`streams` are those that tick, with the events they have had."""
        self._streams = streams
        self._parser = httptools.HttpRequestParser(self)
        self._is_stream = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keeps the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets the stream."""
        self._streams.pop(self, None)

    def data_received(self, data: bytes) -> None:
        """Feeds the parser; whoever tries HTTP/2 first is shown that it is not spoken here."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.close()

    def on_body(self, body: bytes) -> None:
        """Looks for the switch."""
        self._is_stream = self._is_stream or ASKS_FOR_STREAM.search(body) is not None

    def on_message_complete(self) -> None:
        """Answers."""
        if self._parser.get_method() == b"GET":
            self._transport.write(STATE)
        elif self._is_stream:
            self._is_stream = False
            self._transport.write(EVENTS_HEAD + _to_chunk(CHUNK))
            self._streams[self] = 0
        else:
            self._transport.write(WHOLE)

    def tick(self, num_events: int) -> None:
        """Sends the next event, or the last ones."""
        self._streams[self] += 1
        if self._streams[self] <= num_events:
            self._transport.write(_to_chunk(CHUNK))
            return
        del self._streams[self]
        self._transport.write(_to_chunk(CHUNK + DONE) + b"0\r\n\r\n")


def _to_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def serve(port: int, tick_s: float, num_events: int) -> None:
    """Serves for ever."""
    streams: dict[Upstream, int] = {}
    loop = asyncio.get_running_loop()
    await loop.create_server(lambda: Upstream(streams), "127.0.0.1", port)
    while True:
        await asyncio.sleep(tick_s)
        for stream in list(streams):
            stream.tick(num_events)


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])))
