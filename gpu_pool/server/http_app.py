"""A node's port: the wire to gateways, and health for whoever watches.

Owns routes, the upgrade and the life of connections; nothing but health is answered without
authentication. Must not know models. Read next: `wire.handshake`, `wire.connection`.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec
import structlog
from aiohttp import WSCloseCode, web

from contracts.errors import (
    Forbidden,
    PoolSaturated,
    ServiceError,
    Unauthenticated,
    to_error_report,
)
from contracts.pair_key import unseal_pair_key
from contracts.placement import PlacementPlan
from contracts.settings import SettingsError
from contracts.wire import MAX_FRAME_BYTES, WIRE_PATH, NewKey
from gpu_pool.server.gateway_keys import GatewayKeys
from gpu_pool.server.node_status import NodeStatus, Readiness
from gpu_pool.server.wire.connection import Connection, ProtocolError
from gpu_pool.server.wire.doorstep import Doorstep
from gpu_pool.server.wire.frame_writer import FrameWriter
from gpu_pool.server.wire.grant_gate import GrantGate
from gpu_pool.server.wire.handshake import (
    Introduction,
    Session,
    authenticate,
    read_introduction,
)

MAX_CONNECTIONS: Final = 256
_LOG_PAUSE_S: Final = 1.0
"""Strangers may be refused as often as they like, but fill no disk with it."""
FORMER_KEY_S: Final = 60.0
"""How long a connection of a key that is void may go on: its gateway has left it long before."""
HEARTBEAT_S: Final = 20.0
"""A peer that does not answer a ping for half of this is gone."""


@dataclass(frozen=True, slots=True)
class WireSettings:
    """What connections need to know."""

    keys: GatewayKeys
    unix_ms: Callable[[], int]
    draw_bytes: Callable[[int], bytes]
    hello_timeout_s: float


class NodeApp:
    """The routes, and the connections that are open."""

    def __init__(
        self, settings: WireSettings, status: NodeStatus, follow: Callable[[PlacementPlan], None]
    ) -> None:
        """Nothing listens yet: whoever runs `application` decides where.

        `follow` is called with the plans that gateways bring.
        """
        self._settings = settings
        self._status = status
        self._follow = follow
        self._connections: dict[web.WebSocketResponse, Connection] = {}
        self._sessions: dict[web.WebSocketResponse, Session] = {}
        self._endings: set[asyncio.Task[None]] = set()
        self._doorstep = Doorstep(settings.hello_timeout_s)
        self._refused_s = float("-inf")
        self._num_refused = 0
        self._log = structlog.get_logger()
        self.application: Final = web.Application(client_max_size=1024)
        self.application.router.add_get("/health/live", self._answer_live)
        self.application.router.add_get("/health/ready", self._answer_ready)
        self.application.router.add_get(WIRE_PATH, self._serve_wire)

    @property
    def num_streams(self) -> int:
        """Streams that are not over, on all connections."""
        return sum(connection.num_streams for connection in self._connections.values())

    async def close_connections(self) -> None:
        """Says goodbye to every gateway."""
        for ending in self._endings:
            ending.cancel()
        sockets = tuple(self._connections)
        closing = (
            socket.close(code=WSCloseCode.GOING_AWAY, message=b"the node stops")
            for socket in sockets
        )
        await asyncio.gather(*closing, return_exceptions=True)

    async def _answer_live(self, _: web.Request) -> web.Response:
        """The process runs."""
        return web.json_response({"status": "live"})

    async def _answer_ready(self, _: web.Request) -> web.Response:
        """200 while every model that has not failed for good can serve, else 503."""
        status = self._status
        readiness = status.readiness
        place = {"region": status.region, "jurisdiction": status.jurisdiction}
        models = msgspec.to_builtins(status.list_states())
        body = {"status": readiness, **place, "models": models}
        return web.json_response(body, status=200 if readiness is Readiness.READY else 503)

    async def _serve_wire(self, request: web.Request) -> web.StreamResponse:
        """A connection's whole life."""
        try:
            if len(self._connections) >= MAX_CONNECTIONS:
                raise PoolSaturated("This node has as many connections as it can.")
            introduction = read_introduction(request.headers, self._settings.keys)
        except PoolSaturated as error:
            return _refuse(error, 503)
        except Unauthenticated as error:
            return _refuse(error, 401)
        socket = web.WebSocketResponse(
            max_msg_size=MAX_FRAME_BYTES, compress=False, heartbeat=HEARTBEAT_S
        )
        await socket.prepare(request)
        log = self._log.bind(gateway=introduction.gateway_id)
        try:
            async with self._doorstep.wait(request.remote or ""):
                session = await authenticate(socket, introduction, self._settings.draw_bytes)
            log.info("a gateway has connected", key=session.pair_key.name)
            if self._settings.keys.settle(session.gateway_id, session.pair_key):
                self._leave_behind(session)
            await self._serve(socket, session)
        except Unauthenticated as error:
            self._log_refusal(introduction, error)
            await _close(socket, WSCloseCode.POLICY_VIOLATION, error.message)
        except ProtocolError as error:
            log.warning("a connection was closed", reason=str(error))
            await _close(socket, WSCloseCode.PROTOCOL_ERROR, str(error))
        except ConnectionError as error:
            log.warning("a connection was lost", reason=str(error) or type(error).__name__)
        return socket

    def _log_refusal(self, introduction: Introduction, error: Unauthenticated) -> None:
        """Says that a connection was refused, and how often that happened since the last line."""
        self._num_refused += 1
        now_s = asyncio.get_running_loop().time()
        if now_s - self._refused_s >= _LOG_PAUSE_S:
            self._log.warning(
                "a gateway was refused",
                gateway=introduction.gateway_id,
                reason=error.message,
                times=self._num_refused,
            )
            self._refused_s, self._num_refused = now_s, 0

    async def _serve(self, socket: web.WebSocketResponse, session: Session) -> None:
        """Serves an authenticated connection until either side closes it.

        Raises: `ProtocolError`, `ConnectionError`.
        """
        writer = FrameWriter(socket)
        unix_ms = self._settings.unix_ms
        gate = GrantGate(session.connection_key, self._status.region, unix_ms)

        def keep_key(message: NewKey) -> str:
            return self._keep_key(session, message)

        tickets = gate.create_ticket_gate(self._status.node_id)
        connection = Connection(
            writer, gate, tickets, self._status, self._follow, keep_key, unix_ms
        )
        self._connections[socket] = connection
        self._sessions[socket] = session
        writing = asyncio.create_task(writer.run())
        reading = asyncio.create_task(
            connection.run(socket, session.first_entries, session.report_s)
        )
        try:
            done, _ = await asyncio.wait({writing, reading}, return_when=asyncio.FIRST_COMPLETED)
            for task in (reading, writing):  # the reader knows better what has happened
                if task in done:
                    task.result()
        finally:
            del self._connections[socket], self._sessions[socket]
            for task in (writing, reading):
                task.cancel()
            await asyncio.gather(writing, reading, return_exceptions=True)

    def _keep_key(self, session: Session, message: NewKey) -> str:
        """Why a new key cannot be kept beside the pair's own; empty if it is."""
        try:
            key = unseal_pair_key(message.sealed_key, session.connection_key, message.nonce)
            self._settings.keys.stage(session.gateway_id, key, session.pair_key)
        except (Forbidden, SettingsError) as error:
            return str(error)
        return ""

    def _leave_behind(self, session: Session) -> None:
        """Ends the gateway's connections of former keys, after a while."""
        for socket, other in self._sessions.items():
            if other.gateway_id == session.gateway_id and other.pair_key != session.pair_key:
                ending = asyncio.create_task(_end_later(socket))
                self._endings.add(ending)
                ending.add_done_callback(self._endings.discard)


async def _end_later(socket: web.WebSocketResponse) -> None:
    """Closes a connection whose key is void; what is left on it goes on elsewhere."""
    await asyncio.sleep(FORMER_KEY_S)
    await _close(socket, WSCloseCode.POLICY_VIOLATION, "This connection's key is void.")


async def _close(socket: web.WebSocketResponse, code: WSCloseCode, reason: str) -> None:
    """Closes with a reason; a peer that is gone already need not hear it."""
    await socket.close(code=code, message=reason.encode()[:120])


def _refuse(error: ServiceError, status: int) -> web.Response:
    """An upgrade that is not granted."""
    report = to_error_report(error)
    body = {"error": {"code": report.code, "message": report.message}}
    return web.json_response(body, status=status)
