"""The lasting link to one node: connects, proves, serves, and connects again when it breaks.

Owns reconnection (exponential back-off with jitter), the rule that nothing is sent to a node that
has not proved itself, and the pair's next key, with which a second connection takes over while the
streams of the first one end there. Read next: `gateway.upstream.handshake`,
`gateway.upstream.connection`.
"""

import asyncio
from dataclasses import replace
from typing import Final, Protocol

import aiohttp
import structlog

from contracts.errors import Conflict, NodeUnreachable, ServiceError
from contracts.fleet import NodeReport
from contracts.grant import NONCE_BYTES, Grant
from contracts.ids import GatewayId, NodeId
from contracts.kv_transfer import KvTicket
from contracts.placement import PlacementPlan
from contracts.wire import MAX_FRAME_BYTES, WIRE_PATH, Hello
from gateway.sources import Sources
from gateway.upstream.connection import NodeConnection, StreamBounds
from gateway.upstream.handshake import Handshake, HandshakeFailed
from gateway.upstream.node_address import NodeAddress
from gateway.upstream.node_stream import NodeStream

log = structlog.get_logger(__name__)
CONNECT_TIMEOUT_S: Final = 5.0
CLOSE_TIMEOUT_S: Final = 1.0
"""How long a peer may take to say goodbye."""
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5.0
_JITTER_BITS: Final = 16


class FleetListener(Protocol):
    """Who wants to know how nodes are."""

    def record_report(self, report: NodeReport) -> None:
        """A node has said how it is."""
        ...

    def record_link_lost(self, node_id: NodeId) -> None:
        """A node cannot be reached for now."""
        ...

    def choose_report_ms(self, node_id: NodeId) -> int:
        """How often a node that connects now is to say how it is."""
        ...


class NodeLink:
    """One node's link; `run` keeps it up until it is cancelled."""

    def __init__(
        self,
        address: NodeAddress,
        gateway_id: GatewayId,
        listener: FleetListener,
        bounds: StreamBounds,
        sources: Sources,
    ) -> None:
        """Not connected yet."""
        self._address = address
        self._gateway_id = gateway_id
        self._listener = listener
        self._bounds = bounds
        self._sources = sources
        self._connection: NodeConnection | None = None
        self._retiring: set[NodeConnection] = set()
        """Proved with a former key; they carry what is left on them."""
        self._renewing = asyncio.Lock()
        self._is_renewed = asyncio.Event()
        self._enrolling: asyncio.Task[None] | None = None

    @property
    def is_up(self) -> bool:
        """True while a proven connection stands."""
        return self._connection is not None

    @property
    def num_streams(self) -> int:
        """Streams that are open now."""
        return sum(connection.num_streams for connection in self._list_connections())

    def open(self, grant: Grant, body: bytes, ticket: KvTicket | None = None) -> NodeStream:
        """Starts a stream at the node. Raises: `NodeUnreachable`."""
        if self._connection is None:
            raise NodeUnreachable("The node cannot be reached right now.")
        return self._connection.open(grant, body, ticket)

    def move(self, url: str) -> None:
        """The node is reached there from now on; a connection that stands goes on."""
        self._address = replace(self._address, url=url)

    def place(self, plan: PlacementPlan) -> None:
        """Tells the node where its models should be. Raises: `NodeUnreachable`."""
        if self._connection is None:
            raise NodeUnreachable("The node cannot be reached right now.")
        self._connection.place(plan)

    def end_streams(self, error: ServiceError) -> int:
        """Ends all streams on our side with `error`; how many."""
        return sum(connection.end_streams(error) for connection in self._list_connections())

    def sweep(self) -> None:
        """Fails streams that have waited too long, and ends connections that are used up."""
        for connection in self._list_connections():
            connection.sweep()
        for connection in self._retiring:
            connection.close_if_idle()

    async def renew_key(self) -> str:
        """The name of the key that both ends have from now on; streams go on as they are.

        Raises: `NodeUnreachable`, `Conflict` when one of the two cannot keep it.
        """
        async with self._renewing:
            connection = self._connection
            if connection is None:
                raise NodeUnreachable("The node cannot be reached right now.")
            key = self._address.draw_key(self._draw_bytes)
            refusal = await connection.send_key(key.key, self._draw_bytes(NONCE_BYTES))
            if refusal:
                raise Conflict(refusal)
            self._address = self._address.keep_key(key)
            self._is_renewed.set()
            log.info("pair_key_renewed", node_id=self._address.node_id, key=key.name)
            return key.name

    async def run(self, session: aiohttp.ClientSession) -> None:
        """Connects and serves for ever; with a new key, beside the connection of the former one."""
        lives: set[asyncio.Task[None]] = set()
        num_failures = 0
        try:
            while True:
                started_s = self._sources.monotonic_s()
                self._is_renewed.clear()
                life = asyncio.create_task(self._live(session, is_news=num_failures == 0))
                lives.add(life)
                life.add_done_callback(lives.discard)
                renewal = asyncio.create_task(self._is_renewed.wait())
                await asyncio.wait((life, renewal), return_when=asyncio.FIRST_COMPLETED)
                renewal.cancel()
                if not life.done():
                    continue
                was_up = self._sources.monotonic_s() - started_s > _LONGEST_PAUSE_S
                num_failures = 0 if was_up else num_failures + 1
                await asyncio.sleep(self._choose_pause_s(num_failures))
        finally:
            ending = [*lives, *((self._enrolling,) if self._enrolling is not None else ())]
            for task in ending:
                task.cancel()
            await asyncio.gather(*ending, return_exceptions=True)

    async def _live(self, session: aiohttp.ClientSession, *, is_news: bool) -> None:
        """One connection, from its attempt to its end, which the log names."""
        node_id = self._address.node_id
        try:
            await self._connect_and_serve(session)
        except HandshakeFailed as error:
            log.error("handshake_failed", node_id=node_id, reason=str(error))
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            # A node that is not up yet is no news at every attempt.
            if is_news:
                log.warning("node_unreachable", node_id=node_id, error=type(error).__name__)
        except Exception as error:  # a link that ended here would never come back
            log.error("link_failed", node_id=node_id, error=type(error).__name__)

    async def _connect_and_serve(self, session: aiohttp.ClientSession) -> None:
        """One life of the connection, from the upgrade to its end."""
        nonce = self._draw_bytes(NONCE_BYTES)
        handshake = Handshake(self._address.pair_key, self._gateway_id, nonce)
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            socket = await session.ws_connect(
                self._address.url.rstrip("/") + WIRE_PATH,
                headers=handshake.headers,
                max_msg_size=MAX_FRAME_BYTES,
                compress=0,
                timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_TIMEOUT_S),  # pyright: ignore[reportCallIssue]
                ssl=self._address.create_ssl_context(),
            )
            hello, connection_key = await self._prove(socket, handshake)
        await self._serve(socket, hello, connection_key)

    async def _prove(
        self, socket: aiohttp.ClientWebSocketResponse, handshake: Handshake
    ) -> tuple[Hello, bytes]:
        """Our proof and the connection's key; the socket is closed unless the node is proven."""
        try:
            message = await socket.receive()
            if message.type is not aiohttp.WSMsgType.BINARY:
                raise HandshakeFailed("the node closed the connection before its challenge")
            report_ms = self._listener.choose_report_ms(self._address.node_id)
            return handshake.answer(message.data, report_ms)
        except BaseException:
            await socket.close()
            raise

    async def _serve(
        self, socket: aiohttp.ClientWebSocketResponse, hello: Hello, connection_key: bytes
    ) -> None:
        """Carries streams until the connection ends."""
        node_id = self._address.node_id
        connection = NodeConnection(
            node_id,
            socket,
            connection_key,
            self._bounds,
            self,
            self._sources,
        )
        if self._connection is not None:
            self._retiring.add(self._connection)
        self._connection = connection
        log.info("node_connected", node_id=node_id)
        if self._address.pair_key.once_until_unix_s is not None:
            self._enrolling = asyncio.create_task(self._finish_enrolment())
        await connection.run(hello)

    async def _finish_enrolment(self) -> None:
        """Replaces the key of the enrolment, so that its token opens nothing any more."""
        try:
            await self.renew_key()
        except ServiceError as error:
            node_id = self._address.node_id
            log.error("enrolment_not_finished", node_id=node_id, reason=error.message)

    def on_report(self, report: NodeReport) -> None:
        """Passes on what the node says of itself."""
        self._listener.record_report(report)

    def on_lost(self, connection: NodeConnection) -> None:
        """Forgets the connection and, if no other has taken over, says so, before its streams fail
        and look for another node.
        """
        self._retiring.discard(connection)
        if connection is not self._connection:
            return
        self._connection = None
        self._listener.record_link_lost(self._address.node_id)
        log.warning("node_connection_lost", node_id=self._address.node_id)

    def _list_connections(self) -> list[NodeConnection]:
        """All that stand, the one for new streams first."""
        return (
            [*self._retiring] if self._connection is None else [self._connection, *self._retiring]
        )

    def _draw_bytes(self, num_bytes: int) -> bytes:
        """Unpredictable ones."""
        return self._sources.random_bits(8 * num_bytes).to_bytes(num_bytes, "big")

    def _choose_pause_s(self, num_failures: int) -> float:
        """Half to all of the back-off, so that gateways do not return in step."""
        longest = min(_FIRST_PAUSE_S * 2 ** min(num_failures, 16), _LONGEST_PAUSE_S)
        share = self._sources.random_bits(_JITTER_BITS) / 2**_JITTER_BITS
        return longest * (0.5 + share / 2)
