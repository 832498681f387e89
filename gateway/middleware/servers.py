"""Listening ports inside one event loop, with uvicorn's configuration and a life of our own.

Owns binding, serving and the graceful end of the two ports; must not know what they serve.
Read next: `gateway.middleware.client_connection`, `gateway.middleware.doorway`.
"""

import asyncio
import socket
import time
from email.utils import formatdate
from typing import Any, Final, cast

import uvicorn
from uvicorn.server import ServerState

from contracts.sections import MetricsSettings
from gateway.middleware.body_memory import BodyMemory
from gateway.middleware.client_connection import ClientConnection, PortParts
from gateway.middleware.crowd import OpenGuest
from gateway.middleware.direct_routes import DirectRoutes, NoDirectRoutes, Refuser
from gateway.middleware.doorway import AwaitedClient, TlsListener
from gateway.settings import AdminSettings, LimitSettings, ListenSettings

BACKLOG: Final = 2048
LAST_WORDS_S: Final = 2
"""How long requests that outlast the grace have to say so to their clients."""
_SWEEP_S: Final = 1.0
_LOOK_S: Final = 0.01
"""How often a stop looks whether the last client is gone."""
_NO_DIRECT_ROUTES: Final = NoDirectRoutes()


class Port:
    """One listening port and the application behind it."""

    def __init__(
        self,
        application: Any,
        listen: ListenSettings | AdminSettings | MetricsSettings,
        limits: LimitSettings,
        refuser: Refuser,
        direct: DirectRoutes = _NO_DIRECT_ROUTES,
    ) -> None:
        """`application` is an ASGI callable for what `direct` does not serve, `refuser` answers
        what is no request. Nothing is bound.
        """
        tls = listen.tls
        self._body_memory = BodyMemory(limits.max_body_bytes_in_all)
        self._listen = listen
        self._parts = PortParts(limits, self._body_memory, direct, refuser)
        self._grace_s = limits.shutdown_grace_s + LAST_WORDS_S
        self._config = uvicorn.Config(
            application,
            http=ClientConnection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
            timeout_keep_alive=limits.keep_alive_s,
            ssl_certfile=None if tls is None else tls.certificate_file,
            ssl_keyfile=None if tls is None else tls.key_file,
        )
        self._state = ServerState()
        self._listener: asyncio.Server | TlsListener | None = None
        self._socket: socket.socket | None = None
        self._sweeping: asyncio.Task[None] | None = None

    @property
    def num_body_bytes(self) -> int:
        """Bytes of request bodies that are held now."""
        return self._body_memory.num_bytes

    @property
    def number(self) -> int:
        """The port's number once it is bound."""
        assert self._socket is not None
        return self._socket.getsockname()[1]

    async def start(self) -> None:
        """Binds and serves; returns when connections are accepted. Raises: `OSError`."""
        self._config.load()
        self._renew_date()
        host = self._listen.host
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server(
            (host, self._listen.port), family=family, backlog=BACKLOG
        )
        # Connections inherit it. asyncio sets it only on sockets that name their protocol, which
        # these do not; without it the second part of a small answer waits 40 ms for the first's
        # acknowledgement.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        self._listener = await self._listen_on(self._socket)
        self._sweeping = asyncio.create_task(self._sweep())

    async def stop(self) -> None:
        """Stops listening, lets running requests end within the grace, then cuts them off."""
        assert self._listener is not None
        assert self._sweeping is not None
        self._listener.close()
        for connection in self._list_connections():
            connection.shutdown()
        end_s = time.monotonic() + self._grace_s
        while self._state.connections and time.monotonic() < end_s:  # noqa: ASYNC110 - uvicorn's set
            await asyncio.sleep(_LOOK_S)
        self._sweeping.cancel()
        for connection in self._list_connections():
            connection.cut()

    async def _listen_on(self, bound: socket.socket) -> asyncio.Server | TlsListener:
        """What accepts connections from now on."""
        context = self._config.ssl
        if context is None:
            loop = asyncio.get_running_loop()
            return await loop.create_server(self._create_connection, sock=bound, backlog=BACKLOG)
        connections = cast("set[OpenGuest]", self._state.connections)
        limits = self._parts.limits
        return TlsListener(bound, context, limits, connections, self._create_connection)

    def _create_connection(self, in_place_of: OpenGuest | None = None) -> ClientConnection:
        """What serves one client."""
        return ClientConnection(self._parts, self._config, self._state, {}, in_place_of)

    def _list_connections(self) -> list[ClientConnection | AwaitedClient]:
        """The connections that are open now."""
        return [cast("ClientConnection | AwaitedClient", item) for item in self._state.connections]

    async def _sweep(self) -> None:
        """Looks after connections that take too long, and at the clock."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_SWEEP_S)
            self._renew_date()
            now_s = loop.time()
            for connection in self._list_connections():
                connection.sweep(now_s)

    def _renew_date(self) -> None:
        """What every answer says of the time, as a list that is new each time."""
        self._state.default_headers = [(b"date", formatdate(time.time(), usegmt=True).encode())]
