"""How much a client may be waited for: uvicorn's protocol with the bounds in time that it lacks.

Owns when a connection is ended, because something takes too long or because others lack its place.
What the client asks is its subclass's. Read next: `gateway.middleware.client_connection` (which is
that), `gateway.middleware.waits`, `gateway.middleware.crowd`.
"""

import asyncio
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Protocol, cast

from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from gateway.middleware.crowd import OpenGuest, make_room
from gateway.middleware.reading import ReadingControl
from gateway.middleware.waits import Waits
from gateway.settings import LimitSettings


class OpenStream(Protocol):
    """An answer under way whose reader may have to be told that we are still there."""

    def sweep(self, now_s: float) -> None:
        """Called about once a second."""
        ...


class PatientConnection(HttpToolsProtocol):
    """uvicorn's protocol, watched."""

    cycle: Any
    """The request that was read last: an `HttpExchange`, uvicorn's own, or None before the first.
    uvicorn's methods ask both for `response_complete` and set `keep_alive`."""
    flow: FlowControl

    def __init__(
        self,
        limits: LimitSettings,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        in_place_of: OpenGuest | None = None,
    ) -> None:
        """Nobody is there yet; all but `limits` is what uvicorn's own protocol takes, and who has
        stood for the client among the open connections until now.
        """
        super().__init__(config, server_state, app_state)
        self.limits = limits
        self._in_place_of = in_place_of
        self.on_writable: Callable[[], None] | None = None
        """Called when the client reads again after it had not."""
        self.stream: OpenStream | None = None
        """The events under way, if there are some."""
        self._rest = b""
        """What was read and is not parsed yet, as requests that came before it still wait."""
        self._is_unread = False
        """True while the next request waits for the client to read the answers it has."""
        self._waits = Waits(headers_since_s=self.loop.time())

    @abstractmethod
    def _has_unserved(self) -> bool:
        """True while something that was read waits: reading on would only pile up more."""

    @abstractmethod
    def _go_on(self) -> None:
        """Serves the next request that has been read, and reads on behind the last of them."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is here."""
        if self._in_place_of is not None:
            self.connections.discard(cast("Any", self._in_place_of))
            self._in_place_of = None
        super().connection_made(transport)
        self.flow = ReadingControl(transport, self._has_unserved)
        self.make_room()

    @property
    def host(self) -> str:
        """The client's address; empty where there is none."""
        return "" if self.client is None else self.client[0]

    @property
    def unused_since_s(self) -> float | None:
        """Since when nothing of what it has asked is under way; None while something is."""
        waits = self._waits
        if self._is_unread:
            return waits.unread_since_s
        if self.pipeline or self._rest or waits.body_since_s is not None:
            return None
        if self.cycle is not None and not self.cycle.response_complete:
            return None
        return waits.idle_since_s or waits.leaving_since_s or waits.headers_since_s

    def give_way(self) -> None:
        """Ends the connection for another one; what is with the kernel still gets to the client."""
        self.connections.discard(self)
        if self.transport.get_write_buffer_size() or not self.transport.can_write_eof():
            self.transport.abort()
        else:
            self.transport.close()

    def cut(self) -> None:
        """Ends the connection, whatever is under way."""
        self.transport.abort()

    def make_room(self) -> bool:
        """Has others give way while more connections are open than may be; False where none can."""
        guests = cast("set[OpenGuest]", self.connections)
        return make_room(guests, self, self.limits.max_connections)

    def sweep(self, now_s: float) -> None:
        """Ends the connection if something takes too long; called about once a second."""
        if self.stream is not None:
            self.stream.sweep(now_s)
        if self._waits.headers_since_s is not None and self._has_unserved():
            self._waits.headers_since_s = now_s  # it is us who read no further
        is_answered = self.cycle is not None and self.cycle.response_complete
        if self._waits.are_over(self.limits, now_s, is_answered=is_answered):
            self.transport.abort()

    def pause_writing(self) -> None:
        """The client leaves data unread."""
        super().pause_writing()
        self._waits.unread_since_s = self.loop.time()

    def resume_writing(self) -> None:
        """The client reads again."""
        super().resume_writing()
        self._waits.unread_since_s = None
        if self._is_unread:
            self._is_unread = False
            self._go_on()
        elif self.on_writable is not None:
            self.on_writable()
