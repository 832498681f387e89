"""uvicorn servers inside one event loop, with sockets and signals in our hands.

Owns binding, serving and the graceful end of the two ports; must not know what they serve.
Read next: `gateway.middleware.client_connection`.
"""

import asyncio
import socket
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, cast

import uvicorn

from contracts.sections import MetricsSettings
from gateway.middleware.body_memory import BodyMemory
from gateway.middleware.client_connection import ClientConnection, PortParts
from gateway.middleware.direct_routes import DirectRoutes, NoDirectRoutes, Refuser
from gateway.settings import AdminSettings, LimitSettings, ListenSettings

BACKLOG: Final = 2048
LAST_WORDS_S: Final = 2
"""How long requests that outlast the grace have to say so to their clients."""
_SWEEP_S: Final = 1.0
_NO_DIRECT_ROUTES: Final = NoDirectRoutes()


class _Server(uvicorn.Server):
    """A server that leaves signals to the process: two of them share one."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


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
        self._direct = direct
        self._body_memory = BodyMemory(limits.max_body_bytes_in_all)
        self._listen = listen
        parts = PortParts(limits, self._body_memory, direct, refuser)
        self._server = _Server(
            uvicorn.Config(
                application,
                http=cast("type[asyncio.Protocol]", partial(ClientConnection, parts)),
                ws="none",
                lifespan="off",
                interface="asgi3",
                access_log=False,
                log_config=None,
                server_header=False,
                proxy_headers=False,
                backlog=BACKLOG,
                limit_concurrency=limits.max_connections,
                timeout_keep_alive=limits.keep_alive_s,
                timeout_graceful_shutdown=limits.shutdown_grace_s + LAST_WORDS_S,
                ssl_certfile=None if tls is None else tls.certificate_file,
                ssl_keyfile=None if tls is None else tls.key_file,
            )
        )
        self._socket: socket.socket | None = None
        self._tasks: list[asyncio.Task[None]] = []

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
        host = self._listen.host
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server(
            (host, self._listen.port), family=family, backlog=BACKLOG
        )
        self._tasks = [
            asyncio.create_task(self._server.serve([self._socket])),
            asyncio.create_task(self._sweep()),
        ]
        while not self._server.started:
            if self._tasks[0].done():
                self._tasks[0].result()
            await asyncio.sleep(0)

    async def stop(self) -> None:
        """Stops listening, lets running requests end within the grace, then cuts them off."""
        self._server.should_exit = True
        await self._tasks[0]
        self._tasks[1].cancel()
        for connection in self._list_connections():
            connection.transport.abort()

    def _list_connections(self) -> list[ClientConnection]:
        """The connections that are open now."""
        return [cast("ClientConnection", item) for item in self._server.server_state.connections]

    async def _sweep(self) -> None:
        """Looks after connections that take too long."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_SWEEP_S)
            now_s = loop.time()
            for connection in self._list_connections():
                connection.sweep(now_s)
