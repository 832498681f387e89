"""One request and its answer, as the request path sees them: no sockets beyond this file.

Inference requests come here past ASGI and their answers are written as bytes: a scope, a cycle and
messages cost more than a tenth of a small request. Owns reading a body within its bounds and
writing one answer or a stream. Must not know what the bytes mean. Writing never waits: whoever has
more to say than one answer asks `is_blocked` first. Read next: `gateway.request_path`,
`gateway.middleware.client_connection`.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from contracts.errors import (
    InvalidRequest,
    PayloadTooLarge,
    PoolSaturated,
    RequestTimeout,
    ServiceError,
)
from gateway.middleware.body_memory import BodyMemory
from gateway.middleware.coding import refuse_coding
from gateway.settings import LimitSettings

_CONTENT_LENGTH: Final = b"content-length"
_EVENT_STREAM: Final = (
    b"content-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-cache\r\nx-accel-buffering: no\r\n"
)
_CHUNKED: Final = b"transfer-encoding: chunked\r\n"
_CHUNK: Final = b"%x\r\n%b\r\n"
_END: Final = b"0\r\n\r\n"
_CLOSE: Final = b"connection: close\r\n"
_PING: Final = b": ping\n\n"
"""A comment, which readers of events skip and whatever lies between takes for a sign of life."""
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class Carrier(Protocol):
    """What an exchange asks of the connection that it came on."""

    limits: LimitSettings
    body_memory: BodyMemory
    transport: asyncio.Transport
    flow: FlowControl
    client: tuple[str, int] | None
    headers: list[tuple[bytes, bytes]]
    """Of the request that was read last, as are the next three."""
    parser: Any
    expect_100_continue: bool
    is_coded: bool
    """Its body is packed."""
    on_writable: Callable[[], None] | None
    stream: Any
    """The exchange whose events are under way; it is swept about once a second."""

    def format_default_headers(self) -> bytes:
        """Whole lines that every answer begins with."""
        ...

    def on_response_complete(self) -> None:
        """The answer is written."""
        ...


class HttpExchange:
    """A request to be answered once."""

    __slots__ = (
        "_body",
        "_broken",
        "_connection",
        "_has_sent",
        "_is_body_whole",
        "_is_chunked",
        "_is_coded",
        "_is_memory_full",
        "_num_body_bytes",
        "_on_lost",
        "_owner",
        "_quiet_since_s",
        "_transport",
        "_waiter",
        "_wants_continue",
        "extra_headers",
        "headers",
        "is_lost",
        "keep_alive",
        "method",
        "path",
        "query",
        "response_complete",
        "response_started",
        "tap",
    )

    def __init__(
        self, connection: Carrier, method: bytes, path: str, query: bytes, http_version: str
    ) -> None:
        """A request whose headers have just been read."""
        self.headers: list[tuple[bytes, bytes]] = connection.headers
        self.method = method
        self.path = path
        """Decoded; what follows a question mark is in `query`, as it came."""
        self.query = query
        self.keep_alive = http_version != "1.0" and connection.parser.should_keep_alive()
        self.response_started = False
        self.response_complete = False
        self.is_lost = False
        """True once the client is gone."""
        self.extra_headers = b""
        """Whole lines for the answer, whatever it will be."""
        self.tap: Callable[[bytes], None] | None = None
        """Hears the body of the answer as it is sent."""
        self._connection = connection
        self._transport = connection.transport
        self._is_chunked = http_version != "1.0"
        self._wants_continue = connection.expect_100_continue
        self._is_coded = connection.is_coded
        self._body: bytes | bytearray = b""
        self._num_body_bytes = 0
        """Also what this request holds of the memory that all bodies share."""
        self._is_body_whole = False
        self._is_memory_full = False
        self._owner: str | None = None
        self._broken: ServiceError | None = None
        self._on_lost: Callable[[], None] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._has_sent = True
        """Events, since the latest sweep."""
        self._quiet_since_s = 0.0

    @property
    def has_started(self) -> bool:
        """True once the status is sent."""
        return self.response_started

    @property
    def is_blocked(self) -> bool:
        """True while the client leaves so much unread that nothing should be added."""
        return self._connection.flow.write_paused

    @property
    def flow(self) -> FlowControl:
        """What says so, for whoever asks at each event."""
        return self._connection.flow

    @property
    def is_unwanted(self) -> bool:
        """True while more of the body would only pile up: nobody has asked for it yet."""
        is_asked_for = self._waiter is not None or self._is_body_whole or self.response_complete
        return self._num_body_bytes > HIGH_WATER_LIMIT and not is_asked_for

    @property
    def peer(self) -> str | None:
        """The connection's other end: the client, or a proxy before it."""
        client = self._connection.client
        return client[0] if client else None

    async def drain(self) -> None:
        """Returns when the client has read what was written, or is gone."""
        await self._connection.flow.drain()

    def watch(self, on_lost: Callable[[], None]) -> None:
        """Calls `on_lost` as soon as the client is gone, now if it is."""
        self._on_lost = on_lost
        if self.is_lost:
            on_lost()

    def watch_writable(self, on_writable: Callable[[], None] | None) -> None:
        """Calls `on_writable` whenever the client has caught up after `is_blocked`."""
        self._connection.on_writable = on_writable

    def finish(self) -> bool:
        """Ends the watch and lets go of the body; True when the client has stayed."""
        self._on_lost = None
        self._release_body()
        if not self.response_complete and not self.is_lost:
            self.cut()  # a defect: whoever should have answered has not
        return not self.is_lost

    def cut(self) -> None:
        """Ends the connection at once, so that a broken answer cannot look complete."""
        self._transport.abort()

    # -- called by the connection

    def add_body(self, piece: bytes) -> None:
        """A piece of the body has come."""
        if self.response_complete:
            return
        if self._is_memory_full or not self._connection.body_memory.take(len(piece), self._owner):
            self._is_memory_full = True
            self._release_body()
            self._wake()
            return
        self._num_body_bytes += len(piece)
        if not self._body:
            self._body = piece
        elif type(self._body) is bytes:
            self._body = bytearray(self._body) + piece
        else:
            self._body += piece
        if self.is_unwanted:
            self._connection.flow.pause_reading()
        elif self._num_body_bytes > self._connection.limits.max_body_bytes:
            self._wake()

    def break_body(self, error: ServiceError) -> None:
        """The rest of the body cannot be read, and nothing behind it."""
        self._broken = error
        if self.keep_alive:
            self.extra_headers += _CLOSE
        self._wake()

    def end_body(self) -> None:
        """The body is whole."""
        self._is_body_whole = True
        self._wake()

    def lose(self) -> None:
        """The client is gone."""
        self.is_lost = True
        self._release_body()
        self._wake()
        on_lost, self._on_lost = self._on_lost, None
        if on_lost is not None:
            on_lost()

    # -- called by whoever answers

    def own_body(self, owner: str) -> None:
        """The body is `owner`'s, whose bodies leave memory for those of others; called once."""
        held, self._num_body_bytes = self._num_body_bytes, 0
        if self._connection.body_memory.assign(held, owner):
            self._num_body_bytes = held
        else:
            self._is_memory_full, self._body = True, b""
        self._owner = owner

    def take_body(self) -> bytes | bytearray | None:
        """The whole body if it is here, as almost always; else None: `read_body` waits for it.

        Raises: `CodingUnsupported`, `PayloadTooLarge`, `PoolSaturated`.
        """
        if not self._is_body_whole:
            return None
        self._check_body()
        self._connection.flow.resume_reading()
        body, self._body = self._body, b""
        return body

    async def read_body(self) -> bytes | bytearray | None:
        """The whole body; None when the client left before its end.

        Raises: `CodingUnsupported`, `PayloadTooLarge` without reading further, `PoolSaturated`,
        `RequestTimeout`.
        """
        limits = self._connection.limits
        for name, value in self.headers:
            if name == _CONTENT_LENGTH:
                _check_length(value, limits.max_body_bytes)
        if self._wants_continue and not self._transport.is_closing():
            self._transport.write(_CONTINUE)
        try:
            async with asyncio.timeout(limits.body_timeout_s):
                while not (self._is_body_whole or self.is_lost):
                    self._check_body()
                    self._waiter = asyncio.get_running_loop().create_future()
                    self._connection.flow.resume_reading()
                    await self._waiter
        except TimeoutError as error:
            raise RequestTimeout("The request's body did not arrive in time.") from error
        finally:
            self._waiter = None
        return None if self.is_lost else self.take_body()

    def reply(self, status: int, body: bytes, headers: bytes) -> None:
        """Answers with JSON in one piece; HEAD gets its headers only, as what follows them would
        pass for the next answer. `headers` are whole lines of checked content.
        """
        if self.is_lost:
            return
        if self.tap is not None:
            self.tap(body)
        self.response_started = True
        connection = self._connection
        self._transport.write(
            b"%b%b%b%b%bcontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
            % (
                STATUS_LINE[status],
                connection.format_default_headers(),
                headers,
                self.extra_headers,
                b"" if self.keep_alive else _CLOSE,
                len(body),
                b"" if self.method == b"HEAD" else body,
            )
        )
        self._complete()

    def start_events(self, headers: bytes, events: bytes) -> None:
        """Begins a stream of server-sent events with those that are there already, if any."""
        if self.is_lost:
            return
        self.response_started = True
        framing = self.extra_headers + (b"" if self.keep_alive else _CLOSE)
        if self._is_chunked:  # else closing ends an answer
            framing += _CHUNKED
        connection = self._connection
        connection.stream = self
        default = connection.format_default_headers()
        head = b"%b%b%b%b%b\r\n" % (STATUS_LINE[200], default, headers, framing, _EVENT_STREAM)
        self._transport.write(head + (self._frame(events) if events else b""))

    def send_events(self, events: bytes) -> None:
        """Sends whole events, at least one. The same as `_frame`, without a call for each event."""
        if self.is_lost:
            return
        if self.tap is not None:
            self.tap(events)
        self._has_sent = True
        self._transport.write(_CHUNK % (len(events), events) if self._is_chunked else events)

    def end_events(self, events: bytes) -> None:
        """Sends the last events."""
        if not self.is_lost:
            framed = self._frame(events)
            self._transport.write(framed + _END if self._is_chunked else framed)
            self._complete()

    def sweep(self, now_s: float) -> None:
        """Sends a comment when no event has left for long, as during the prefill of a long prompt.

        Called about once a second while a stream is open, so that an event costs no timer.
        """
        if self._has_sent:
            self._has_sent = False
            self._quiet_since_s = now_s
        elif now_s - self._quiet_since_s >= self._connection.limits.ping_after_s:
            self._quiet_since_s = now_s
            if not self.is_blocked:
                ping = _CHUNK % (len(_PING), _PING) if self._is_chunked else _PING
                self._transport.write(ping)

    def _frame(self, events: bytes) -> bytes:
        """Events as they go out, of which whoever listens is told."""
        if self.tap is not None:
            self.tap(events)
        self._has_sent = True
        return _CHUNK % (len(events), events) if self._is_chunked else events

    def _complete(self) -> None:
        """What uvicorn does at the end of an answer."""
        self._connection.stream = None
        self.response_complete = True
        if not self.keep_alive:
            self._transport.close()
        self._connection.on_response_complete()

    def _release_body(self) -> None:
        """Forgets the body, and with it what this request holds of the shared memory."""
        if self._num_body_bytes:
            self._connection.body_memory.give_back(self._num_body_bytes, self._owner)
        self._num_body_bytes = 0
        self._body = b""

    def _check_body(self) -> None:
        """Raises for a body that is packed, broken or too large for its bound or the memory."""
        if self._is_coded:
            raise refuse_coding()
        if self._broken is not None:
            raise self._broken
        max_bytes = self._connection.limits.max_body_bytes
        if self._num_body_bytes > max_bytes:
            raise _too_large(max_bytes)
        if self._is_memory_full:
            raise PoolSaturated("This gateway is holding as many long requests as it can.")

    def _wake(self) -> None:
        """Goes on in `read_body`, if somebody waits there."""
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


def _check_length(value: bytes, max_bytes: int) -> None:
    """Raises when the announced length is out of bounds."""
    if not value.isdigit():
        raise InvalidRequest("The Content-Length header is not a number.")
    if len(value) > 20 or int(value) > max_bytes:
        raise _too_large(max_bytes)


def _too_large(max_bytes: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"The request's body is larger than {max_bytes} bytes.")
