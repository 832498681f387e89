"""One request and its answer, as the request path sees them: no sockets beyond this file.

Inference answers are written here as bytes, past ASGI's messages: each of those costs a dictionary,
a coroutine and two regular expressions per header, together a tenth of a small request. Owns
reading a body within its bounds and writing one answer or a stream. Must not know what the bytes
mean. Read next: `gateway.request_path`, `gateway.middleware.client_connection`.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from contracts.errors import InvalidRequest, PayloadTooLarge, RequestTimeout
from gateway.middleware.client_connection import CONNECTION_KEY, ClientConnection
from gateway.settings import LimitSettings

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_CONTENT_LENGTH: Final = b"content-length"
_EVENT_STREAM: Final = (
    b"content-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-cache\r\nx-accel-buffering: no\r\n"
)
_CHUNKED: Final = b"transfer-encoding: chunked\r\n"
_CLOSE: Final = b"connection: close\r\n"


class HttpExchange:
    """A request to be answered once."""

    __slots__ = ("_connection", "_cycle", "_is_chunked", "_limits", "_receive", "headers")

    def __init__(self, scope: Scope, receive: Receive, limits: LimitSettings) -> None:
        """Reads nothing yet."""
        connection: ClientConnection = scope[CONNECTION_KEY]
        self.headers: list[tuple[bytes, bytes]] = scope["headers"]
        self._connection = connection
        self._cycle = connection.active
        self._is_chunked = scope["http_version"] != "1.0"  # there, closing ends an answer
        self._limits = limits
        self._receive = receive

    @property
    def is_lost(self) -> bool:
        """True once the client is gone."""
        return self._connection.is_lost

    @property
    def has_started(self) -> bool:
        """True once the status is sent."""
        return self._cycle.response_started

    def watch(self, on_lost: Callable[[], None]) -> None:
        """Calls `on_lost` as soon as the client is gone, now if it is."""
        self._connection.on_lost = on_lost
        if self._connection.is_lost:
            on_lost()

    def finish(self) -> bool:
        """Ends the watch; True when the client has stayed."""
        self._connection.on_lost = None
        return not self._connection.is_lost

    def cut(self) -> None:
        """Ends the connection at once, so that a broken answer cannot look complete."""
        self._connection.transport.abort()

    async def read_body(self) -> bytes | bytearray | None:
        """The whole body; None when the client left before its end.

        Raises: `PayloadTooLarge` without reading further, `RequestTimeout`.
        """
        max_bytes = self._limits.max_body_bytes
        if not self._cycle.more_body:
            # All of it is here, as almost always: no need to wait, nor for a timer.
            self._connection.resume_reading()
            body, self._cycle.body = self._cycle.body, bytearray()
            if len(body) > max_bytes:
                raise _too_large(max_bytes)
            return body
        for name, value in self.headers:
            if name == _CONTENT_LENGTH:
                _check_length(value, max_bytes)
        try:
            async with asyncio.timeout(self._limits.body_timeout_s):
                return await self._read(max_bytes)
        except TimeoutError as error:
            raise RequestTimeout("The request's body did not arrive in time.") from error

    async def reply(self, status: int, body: bytes, headers: bytes) -> None:
        """Answers with JSON in one piece; HEAD gets its headers only, as what follows them would
        pass for the next answer. `headers` are whole lines of checked content.
        """
        flow, cycle = self._connection.flow, self._cycle
        if flow.write_paused:
            await flow.drain()
        if self._connection.is_lost:
            return
        cycle.response_started = True
        self._connection.transport.write(
            b"%b%b%b%bcontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
            % (
                STATUS_LINE[status],
                self._connection.format_default_headers(),
                headers,
                b"" if cycle.keep_alive else _CLOSE,
                len(body),
                b"" if cycle.scope["method"] == "HEAD" else body,
            )
        )
        self._complete()

    async def start_events(self, headers: bytes) -> None:
        """Begins a stream of server-sent events."""
        flow, cycle = self._connection.flow, self._cycle
        if flow.write_paused:
            await flow.drain()
        if self._connection.is_lost:
            return
        cycle.response_started = True
        framing = (b"" if cycle.keep_alive else _CLOSE) + (_CHUNKED if self._is_chunked else b"")
        default = self._connection.format_default_headers()
        self._connection.transport.write(
            b"%b%b%b%b%b\r\n" % (STATUS_LINE[200], default, headers, framing, _EVENT_STREAM)
        )

    async def send_events(self, events: bytes, *, is_last: bool) -> None:
        """Sends whole events, at least one; waits while the client does not read."""
        connection = self._connection
        if connection.flow.write_paused:
            await connection.flow.drain()
        if connection.is_lost:
            return
        if self._is_chunked:
            end = b"0\r\n\r\n" if is_last else b""
            events = b"%x\r\n%b\r\n%b" % (len(events), events, end)
        connection.transport.write(events)
        if is_last:
            self._complete()

    def _complete(self) -> None:
        """What uvicorn does at the end of an answer."""
        cycle = self._cycle
        cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive:
            self._connection.transport.close()
        cycle.on_response()

    async def _read(self, max_bytes: int) -> bytes | None:
        """All pieces of the body."""
        pieces: list[bytes] = []
        size, has_more = 0, True
        while has_more:
            message = await self._receive()
            if message["type"] != "http.request":
                return None
            pieces.append(message["body"])
            size += len(pieces[-1])
            if size > max_bytes:
                raise _too_large(max_bytes)
            has_more = message["more_body"]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _check_length(value: bytes, max_bytes: int) -> None:
    """Raises when the announced length is out of bounds."""
    if not value.isdigit():
        raise InvalidRequest("The Content-Length header is not a number.")
    if len(value) > 20 or int(value) > max_bytes:
        raise _too_large(max_bytes)


def _too_large(max_bytes: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"The request's body is larger than {max_bytes} bytes.")
