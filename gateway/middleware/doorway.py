"""Clients that have opened a connection and not agreed on a key yet.

An event loop that listens with a certificate keeps such clients to itself until they have: nobody
counts them, and who opens connections and says nothing takes every open file of the process. So
connections are accepted here, and count and give way like others from then on.
Read next: `gateway.middleware.crowd`, `gateway.middleware.servers`.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final

import structlog

from gateway.middleware.crowd import OpenGuest, make_room
from gateway.middleware.patient_connection import PatientConnection
from gateway.settings import LimitSettings

log = structlog.get_logger(__name__)
_REST_S: Final = 1.0
"""How long nobody is accepted where the system has no descriptor or memory left for one."""


class TlsListener:
    """Accepts connections for as long as it is open."""

    def __init__(
        self,
        listening: socket.socket,
        context: ssl.SSLContext,
        limits: LimitSettings,
        connections: set[OpenGuest],
        create_connection: Callable[[OpenGuest], PatientConnection],
    ) -> None:
        """Accepts from now on; `create_connection` makes what takes a guest's place among those
        that are open and serves it. Called on the loop.
        """
        listening.setblocking(False)
        self._listening = listening
        self._context = context
        self._limits = limits
        self._connections = connections
        self._create_connection = create_connection
        self._accepting = asyncio.create_task(self._accept())

    def close(self) -> None:
        """Accepts nobody any more."""
        self._accepting.cancel()
        self._listening.close()

    async def _accept(self) -> None:
        """Lets one after the other in."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, peer = await loop.sock_accept(self._listening)
            except ConnectionError:  # gone before it was accepted
                continue
            except OSError as error:
                log.error("connection_not_accepted", reason=str(error))
                await asyncio.sleep(_REST_S)
                continue
            guest = AwaitedClient(accepted, peer[0], self._connections)
            guest.agreeing = loop.create_task(self._agree(guest, accepted))
            self._connections.add(guest)
            make_room(self._connections, guest, self._limits.max_connections)

    async def _agree(self, guest: "AwaitedClient", accepted: socket.socket) -> None:
        """Hands the connection on once there is a key; without one the loop closes it."""
        loop = asyncio.get_running_loop()
        try:
            with contextlib.suppress(OSError):  # of TLS, too
                await loop.connect_accepted_socket(
                    lambda: self._create_connection(guest),
                    accepted,
                    ssl=self._context,
                    ssl_handshake_timeout=self._limits.header_timeout_s,
                )
        finally:
            self._connections.discard(guest)


class AwaitedClient:
    """One that has not agreed yet: a connection like others for those who look after all."""

    agreeing: asyncio.Task[None]

    def __init__(self, accepted: socket.socket, host: str, connections: set[Any]) -> None:
        """Of the client at `host`, soon to be one of `connections`."""
        self._accepted = accepted
        self._connections = connections
        self.host = host
        self.unused_since_s: float | None = asyncio.get_running_loop().time()

    def give_way(self) -> None:
        """Ends the connection for another one: whoever agrees finds that nobody is there."""
        self._connections.discard(self)
        with contextlib.suppress(OSError):  # the client has ended it
            self._accepted.shutdown(socket.SHUT_RDWR)

    def shutdown(self) -> None:
        """Ends it because the port closes: nothing has been asked."""
        self.give_way()

    def cut(self) -> None:
        """Ends it, whatever is under way."""
        self.give_way()

    def sweep(self, now_s: float) -> None:
        """Called about once a second; how long agreeing may take is the loop's to watch."""
