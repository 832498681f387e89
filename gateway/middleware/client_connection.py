"""One client's connection: what it asks, and a short way past ASGI.

Owns what may happen before any request is understood: how big headers may be, in which order what
was read is served, and who is told at once when the client is gone. A request that `DirectRoutes`
knows becomes an `HttpExchange` past ASGI; every other one is uvicorn's. Must not know routes or
credentials. Read next: `gateway.middleware.patient_connection`, `gateway.middleware.exchange`.
"""

import asyncio
from dataclasses import dataclass
from typing import Any, Final, cast
from urllib.parse import unquote

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    RequestResponseCycle,
)
from uvicorn.server import ServerState

from contracts.errors import HeadersTooLarge, InvalidRequest, PoolSaturated, ServiceError
from gateway.middleware.body_memory import BodyMemory
from gateway.middleware.coding import CODING, is_coded
from gateway.middleware.crowd import OpenGuest
from gateway.middleware.direct_routes import DirectRoutes, Refuser
from gateway.middleware.exchange import HttpExchange
from gateway.middleware.framing import explain_framing, refuse_version
from gateway.middleware.patient_connection import PatientConnection
from gateway.settings import LimitSettings

_HEADER_OVERHEAD: Final = 4
"""Bytes of a header line besides its name and value."""
_PIECE_BYTES: Final = 64 * 1024
"""So much is parsed at a time: requests that come in one piece wait in it, the rest as bytes. What
one read brings is a quarter of a megabyte at most."""
_UPGRADE: Final = b"upgrade"


@dataclass(frozen=True, slots=True)
class PortParts:
    """What all connections of a port share."""

    limits: LimitSettings
    body_memory: BodyMemory
    direct: DirectRoutes
    refuser: Refuser


class _Deaf:
    """Stands for the parser of a client that cannot be understood any more."""

    def feed_data(self, data: bytes) -> None:
        """Nothing comes of it."""


class ClientConnection(PatientConnection):
    """Which request comes next, and who serves it."""

    parser: Any

    def __init__(
        self,
        parts: PortParts,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        in_place_of: OpenGuest | None = None,
    ) -> None:
        """Nobody is there yet; all but `parts` is what uvicorn's own protocol takes, and who has
        stood for the client until now.
        """
        super().__init__(parts.limits, config, server_state, app_state, in_place_of)
        self.body_memory = parts.body_memory
        self._direct = parts.direct
        self._refuser = parts.refuser
        self._asked_url = b""
        self._asked: tuple[str, bytes, Any] = ("", b"", None)
        """What the latest request's target comes to."""
        self._task: asyncio.Task[None] | None = None
        self._formatted_from: list[tuple[bytes, bytes]] | None = None
        self._formatted = b""
        self._num_header_bytes = 0
        self._num_unparsed_bytes = 0
        self._is_deaf = False
        """True once nothing of what the client sends is understood any more."""
        self._refusal: ServiceError | None = None
        """What it is told after the answers to all before, unless one of these tells it."""

    def format_default_headers(self) -> bytes:
        """The date, as a whole line. `Port` makes a new list of it each second."""
        headers = self.server_state.default_headers
        if headers is not self._formatted_from:
            self._formatted_from = headers
            self._formatted = b"".join([b"%b: %b\r\n" % pair for pair in headers])
        return self._formatted

    def data_received(self, data: bytes) -> None:
        """Reads what has come, of very much only as much as is served."""
        if self._rest or len(data) > _PIECE_BYTES:
            self._rest += data
            self._read_rest()
        else:
            self._parse(data)

    def _read_rest(self) -> None:
        """Reads on in what is left, until requests wait, and then from the socket."""
        while self._rest and not (self.pipeline or self._is_unread or self.transport.is_closing()):
            piece, self._rest = self._rest[:_PIECE_BYTES], self._rest[_PIECE_BYTES:]
            self._parse(piece)
        if self._rest:
            self.flow.pause_reading()
        else:
            self.flow.resume_reading()

    def _has_unserved(self) -> bool:
        """True while something that was read waits: reading on would only pile up more."""
        return bool(self.pipeline or self._rest or self._is_unread or _holds_unwanted(self.cycle))

    def _parse(self, data: bytes) -> None:
        """Feeds the parser, which may hold back one name or value that has not ended: no more."""
        self._num_unparsed_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._go_on_without_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            self._refuse(explain_framing(error, data))
        if self._num_unparsed_bytes > self.limits.max_header_bytes:
            self._refuse(self._refuse_headers())

    def _refuse_headers(self) -> HeadersTooLarge:
        """The error of a request that has too many or too long ones."""
        max_bytes = self.limits.max_header_bytes
        return HeadersTooLarge(f"The request's headers are larger than {max_bytes} bytes.")

    def _refuse(self, error: ServiceError) -> None:
        """Stops to listen, and says why: after the answers to all requests that came before.

        Where a body is what cannot be read, its request is the one that is refused.
        """
        if self._is_deaf or self.transport.is_closing():
            return
        self._is_deaf = True
        self.parser = _Deaf()
        self._rest = b""
        self._waits.headers_since_s = None
        cycle = self.cycle
        if self._waits.body_since_s is None:
            self._refusal = error
        elif not cycle.response_complete:
            self._break_body(cycle, error)
        if cycle is None or (cycle.response_complete and not self.pipeline):
            self._leave()

    def _break_body(self, cycle: Any, error: ServiceError) -> None:
        """The body of the request that was read last will never be whole."""
        self._waits.body_since_s = None
        if type(cycle) is HttpExchange:
            cycle.break_body(error)
        elif cycle.response_started:
            self.transport.abort()  # nothing that is said now could be told from that answer
        else:
            self._refusal = error
            if self.pipeline:
                self.pipeline.popleft()  # nobody serves it
            else:  # whoever does finds the client gone
                cycle.disconnected = cycle.response_complete = True
                cycle.message_event.set()

    def _leave(self) -> None:
        """Says what is left to say, and reads on for a while so that the client can hear it."""
        if self._refusal is not None:
            status, headers, body = self._refuser.refuse(self._refusal)
            self.transport.write(
                b"%b%b%bcontent-type: application/json\r\ncontent-length: %d\r\n"
                b"connection: close\r\n\r\n%b"
                % (STATUS_LINE[status], self.format_default_headers(), headers, len(body), body)
            )
        if not self.transport.can_write_eof():
            self.transport.close()
            return
        self.transport.write_eof()
        self._waits.leaving_since_s = self.loop.time()
        self._waits.body_since_s = self._waits.idle_since_s = None
        self.flow.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tells whoever watches, at once, and lets go of every request, which hold on to this."""
        self.connections.discard(self)
        waiting = [self.cycle, *(cycle for cycle, _ in self.pipeline)]
        self.pipeline.clear()
        self._rest = b""
        self.stream = None
        self._waits.body_since_s = None
        parts = self.__dict__
        parts["cycle"] = parts["scope"] = parts["parser"] = None
        self.flow.resume_writing()
        for cycle in waiting:
            if type(cycle) is HttpExchange:
                cycle.lose()
            elif cycle is not None:
                cycle.disconnected = cycle.disconnected or not cycle.response_complete
                cycle.message_event.set()
        if self.on_writable is not None:
            self.on_writable()  # whoever waited for that has nothing to wait for
        if exc is None:
            self.transport.close()

    def on_message_begin(self) -> None:
        """A request's first bytes are here. Its scope is made when ASGI needs one."""
        self.url = b""
        self.expect_100_continue = False
        self.is_coded = False
        self.headers = []
        self._waits.headers_since_s = self.loop.time()
        self._waits.idle_since_s = None
        self._num_header_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """Takes a header in; one behind the body is none, but costs as much.

        Raises: `HeadersTooLarge`, with which the parser stops.
        """
        self._num_unparsed_bytes = 0
        self._num_header_bytes += len(name) + len(value) + _HEADER_OVERHEAD
        if self._num_header_bytes > self.limits.max_header_bytes:
            raise self._refuse_headers()
        if self._waits.headers_since_s is not None:
            name = name.lower()
            if name == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
            elif name == CODING:
                self.is_coded = self.is_coded or is_coded(value)
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The headers are here; the body may follow.

        Raises: `VersionUnsupported`, `PoolSaturated`, with which the parser stops.
        """
        self._num_unparsed_bytes = 0
        parser = self.parser
        if parser.should_upgrade():
            return  # the parser stops here, and the request is read anew without that header
        if self.url != self._asked_url:  # mostly a client asks for the same again
            self._asked_url, self._asked = self.url, self._find(self.url)
        path, query, found = self._asked
        version = parser.get_http_version()
        if version != "1.1" and version != "1.0":
            raise refuse_version()
        if not self.make_room():
            raise PoolSaturated("This gateway has as many connections as it can hold.")
        self._waits.body_since_s, self._waits.headers_since_s = self._waits.headers_since_s, None
        if found is None:
            self.scope = cast("Any", self._create_scope())
            super().on_headers_complete()
            return
        previous = self.cycle
        exchange = HttpExchange(self, parser.get_method(), path, query, version)
        self.cycle = exchange
        if previous is None or previous.response_complete:
            self._task = self.loop.create_task(self._direct.serve(found, exchange))
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft(cast("Any", (exchange, found)))

    def _find(self, target: bytes) -> tuple[str, bytes, Any]:
        """Decoded path and raw query of a request's target, and who serves that past ASGI.

        Raises: `httptools.HttpParserInvalidURLError`, `InvalidRequest` for one without a path.
        """
        url = httptools.parse_url(target)
        if not url.path:
            raise InvalidRequest("The request's target has no path.")
        path = url.path.decode("ascii")
        if "%" in path:
            path = unquote(path)
        return path, url.query or b"", self._direct.find(path)

    def on_body(self, body: bytes) -> None:
        """Takes a piece of the body in."""
        self._num_unparsed_bytes = 0
        cycle = self.cycle
        if type(cycle) is HttpExchange:
            cycle.add_body(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is here."""
        self._num_unparsed_bytes = 0
        if self._waits.headers_since_s is not None:
            return  # one that is read anew
        cycle = self.cycle
        if type(cycle) is HttpExchange:
            cycle.end_body()
        else:
            super().on_message_complete()
        self._waits.body_since_s = None

    def on_response_complete(self) -> None:
        """The answer is sent: on to the next request, pipelined or yet to come.

        A client that does not read its answers gets no more of them, nor is it read from. Unlike
        uvicorn's own, this sets no timer per request; `sweep` ends idle connections.
        """
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.flow.write_paused:
            self._is_unread = True
            self.flow.pause_reading()
        else:
            self._go_on()

    def _go_on(self) -> None:
        """Serves the next request that has been read, and reads on behind the last of them."""
        if self.pipeline:
            cycle, rest = cast("tuple[Any, Any]", self.pipeline.pop())
            if type(cycle) is HttpExchange:
                self._task = self.loop.create_task(self._direct.serve(rest, cycle))
            else:
                self._start_asgi_task(cycle, rest)
        elif self._is_deaf:
            self._leave()
            return
        else:
            self._waits.idle_since_s = self.loop.time()
        if self._rest:
            self._read_rest()
        else:
            self.flow.resume_reading()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Starts to serve a request that is uvicorn's own.

        Unlike uvicorn's own, this keeps no set of tasks: a stop waits for connections, and `Port`
        cuts those that are left.
        """
        self._task = self.loop.create_task(cycle.run_asgi(app))

    def _create_scope(self) -> dict[str, Any]:
        """What uvicorn tells ASGI of every request, but for what `on_headers_complete` adds."""
        return {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": "1.1",
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "root_path": self.root_path,
            "headers": self.headers,
            "state": self.app_state.copy(),
        }

    def _go_on_without_upgrade(self, rest: bytes) -> None:
        """Reads the request once more as if it had not asked for another protocol.

        A server may ignore that wish (RFC 9110, 7.8), but the parser takes the body that follows
        for the other protocol's. Its name and value have no line breaks, so that what is written
        anew means what was read; whatever decides where the body ends is in it unchanged.
        """
        headers = [(name, value) for name, value in self.headers if name != _UPGRADE]
        if len(headers) == len(self.headers):  # CONNECT asks without the header
            self._refuse(InvalidRequest("No tunnels are made here."))
            return
        method, version = self.parser.get_method(), self.parser.get_http_version()
        lines = [b"%b %b HTTP/%b\r\n" % (method, self.url, version.encode())]
        lines += [b"%b: %b\r\n" % header for header in headers]
        self.parser = httptools.HttpRequestParser(self)
        self._rest = b"".join([*lines, b"\r\n", rest, self._rest])
        self._read_rest()


def _holds_unwanted(cycle: Any) -> bool:
    """True for a request with much of a body that nobody has asked for yet."""
    if cycle is None:
        return False
    if type(cycle) is HttpExchange:
        return cycle.is_unwanted
    return len(cycle.body) > HIGH_WATER_LIMIT and not cycle.response_complete
