"""One client's connection: uvicorn's own protocol with the bounds that it lacks.

Owns what may happen before any request is understood: how long headers may take and how big they
may be, how long a client may leave our data unread, and who is told at once when it is gone. Must
not know routes or credentials. Read next: `gateway.middleware.exchange`.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, cast

from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import (
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.server import ServerState

from gateway.settings import LimitSettings

CONNECTION_KEY: Final = "hearth.connection"
"""Where a request's scope holds its `ClientConnection`."""
_HEADERS_TOO_LARGE: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)
_HEADER_OVERHEAD: Final = 4
"""Bytes of a header line besides its name and value."""
_MAX_PIPELINED: Final = 64
"""Requests that may wait behind the one being served; more end the connection."""
_DISCARD_S: Final = 5.0
"""How long the rest of a body that was refused is read, so that the client sees the answer."""


class _ConnectionAbused(Exception):
    """Raised inside the parser's callbacks, where it ends the parsing."""


class ClientConnection(HttpToolsProtocol):
    """uvicorn's protocol, watched."""

    active: RequestResponseCycle
    """The request being served: of pipelined ones, only the first."""

    def __init__(
        self,
        limits: LimitSettings,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """`limits` is bound beforehand; uvicorn passes the rest by name."""
        super().__init__(config, server_state, app_state, _loop)
        self.is_lost = False
        """True once the client is gone."""
        self.on_lost: Callable[[], None] | None = None
        """Called when the client goes, at once."""
        self._limits = limits
        self._task: asyncio.Task[None] | None = None
        self._formatted_from: list[tuple[bytes, bytes]] | None = None
        self._formatted = b""
        self._num_header_bytes = 0
        self._num_unparsed_bytes = 0
        self._is_header_too_large = False
        self._headers_since_s: float | None = self.loop.time()
        self._body_since_s: float | None = None
        self._idle_since_s: float | None = None
        self._paused_since_s: float | None = None

    def format_default_headers(self) -> bytes:
        """The date, as a whole line. uvicorn makes a new list of it each second."""
        headers = self.server_state.default_headers
        if headers is not self._formatted_from:
            self._formatted_from = headers
            self._formatted = b"".join([b"%b: %b\r\n" % pair for pair in headers])
        return self._formatted

    def sweep(self, now_s: float) -> None:
        """Ends the connection if something takes too long; called about once a second."""
        limits = self._limits
        waits = [
            (self._paused_since_s, limits.slow_reader_timeout_s),
            (self._headers_since_s, limits.header_timeout_s),
            (self._idle_since_s, limits.keep_alive_s),
        ]
        if self._body_since_s is not None and self.cycle.response_complete:
            waits.append((self._body_since_s, _DISCARD_S))
        if any(since_s is not None and now_s - since_s > limit_s for since_s, limit_s in waits):
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Feeds the parser, which may hold back one name or value that has not ended: no more."""
        self._num_unparsed_bytes += len(data)
        super().data_received(data)
        is_too_much = self._num_unparsed_bytes > self._limits.max_header_bytes
        if is_too_much and not self.transport.is_closing():
            self._is_header_too_large = True
            self.send_400_response("")

    def send_400_response(self, msg: str) -> None:
        """Refuses what cannot be parsed; never inside or ahead of the answer to another request."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        is_answering = cycle is not None and cycle.response_started and not cycle.response_complete
        if is_answering or self.pipeline:
            self.transport.abort()
        elif self._is_header_too_large:
            self.transport.write(_HEADERS_TOO_LARGE)
            self.transport.close()
        else:
            super().send_400_response(msg)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tells whoever watches, at once, and lets go of every request, which hold on to this."""
        super().connection_lost(exc)
        self.is_lost = True
        on_lost, self.on_lost = self.on_lost, None
        self.pipeline.clear()
        self._body_since_s = None
        parts = self.__dict__
        parts["cycle"] = parts["scope"] = None
        parts.pop("active", None)
        if on_lost is not None:
            on_lost()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Takes a header in; one behind the body is none, but costs as much.

        Raises: `_ConnectionAbused`, which the parser turns into a refusal.
        """
        self._num_unparsed_bytes = 0
        self._num_header_bytes += len(name) + len(value) + _HEADER_OVERHEAD
        if self._num_header_bytes > self._limits.max_header_bytes:
            self._is_header_too_large = True
            raise _ConnectionAbused
        if self._headers_since_s is not None:
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        """Takes a piece of the body in."""
        self._num_unparsed_bytes = 0
        super().on_body(body)

    def on_message_begin(self) -> None:
        """A request's first bytes are here."""
        super().on_message_begin()
        cast("dict[str, Any]", self.scope)[CONNECTION_KEY] = self
        self._headers_since_s = self.loop.time()
        self._idle_since_s = None
        self._num_header_bytes = 0

    def on_headers_complete(self) -> None:
        """The headers are here; the body may follow. Raises: `_ConnectionAbused`."""
        self._num_unparsed_bytes = 0
        if len(self.pipeline) >= _MAX_PIPELINED:
            raise _ConnectionAbused
        super().on_headers_complete()
        self._body_since_s, self._headers_since_s = self._headers_since_s, None

    def on_message_complete(self) -> None:
        """The request is here."""
        self._num_unparsed_bytes = 0
        super().on_message_complete()
        self._body_since_s = None

    def on_response_complete(self) -> None:
        """The answer is sent: on to the next request, pipelined or yet to come.

        Unlike uvicorn's own, this sets no timer per request; `sweep` ends idle connections.
        """
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        else:
            self._idle_since_s = self.loop.time()
        self.resume_reading()

    def resume_reading(self) -> None:
        """Reads on, unless requests that were read before still wait."""
        if not self.pipeline:
            self.flow.resume_reading()

    def pause_writing(self) -> None:
        """The client leaves data unread."""
        super().pause_writing()
        self._paused_since_s = self.loop.time()

    def resume_writing(self) -> None:
        """The client reads again."""
        super().resume_writing()
        self._paused_since_s = None

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        """Starts to serve a request and notes which.

        Unlike uvicorn's own, this keeps no set of tasks: a stop waits for connections, and `Port`
        cuts those that are left.
        """
        self.active = cycle
        self._task = self.loop.create_task(cycle.run_asgi(app))
