"""The lasting link to one node: connects, proves, serves, and connects again when it breaks.

Owns reconnection (exponential back-off with jitter) and the rule that nothing is sent to a node
that has not proved itself. Read next: `gateway.upstream.handshake`, `gateway.upstream.connection`.
"""

import asyncio
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import aiohttp
import structlog

from contracts.errors import NodeUnreachable
from contracts.fleet import NodeReport
from contracts.grant import NONCE_BYTES, Grant
from contracts.ids import GatewayId, NodeId
from contracts.placement import PlacementPlan
from contracts.settings import Secret
from contracts.wire import MAX_FRAME_BYTES, WIRE_PATH, Hello
from gateway.sources import Sources
from gateway.upstream.connection import NodeConnection, StreamBounds
from gateway.upstream.handshake import Handshake, HandshakeFailed
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


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """Where a node is and what proves that it is this one."""

    node_id: NodeId
    url: str
    pair_key: Secret
    ca_file: Path | None


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

    @property
    def is_up(self) -> bool:
        """True while a proven connection stands."""
        return self._connection is not None

    @property
    def num_streams(self) -> int:
        """Streams that are open now."""
        return 0 if self._connection is None else self._connection.num_streams

    def open(self, grant: Grant, body: bytes) -> NodeStream:
        """Starts a stream at the node. Raises: `NodeUnreachable`."""
        if self._connection is None:
            raise NodeUnreachable("The node cannot be reached right now.")
        return self._connection.open(grant, body)

    def place(self, plan: PlacementPlan) -> None:
        """Tells the node where its models should be. Raises: `NodeUnreachable`."""
        if self._connection is None:
            raise NodeUnreachable("The node cannot be reached right now.")
        self._connection.place(plan)

    def sweep(self) -> None:
        """Fails streams that have waited too long."""
        if self._connection is not None:
            self._connection.sweep()

    async def run(self, session: aiohttp.ClientSession) -> None:
        """Connects and serves for ever."""
        num_failures = 0
        while True:
            started_s = self._sources.monotonic_s()
            try:
                await self._connect_and_serve(session)
            except HandshakeFailed as error:
                log.error("handshake_failed", node_id=self._address.node_id, reason=str(error))
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                # A node that is not up yet is no news at every attempt.
                if num_failures == 0:
                    log.warning(
                        "node_unreachable",
                        node_id=self._address.node_id,
                        error=type(error).__name__,
                    )
            except Exception as error:  # a link that ended here would never come back
                log.error("link_failed", node_id=self._address.node_id, error=type(error).__name__)
            was_up = self._sources.monotonic_s() - started_s > _LONGEST_PAUSE_S
            num_failures = 0 if was_up else num_failures + 1
            await asyncio.sleep(self._choose_pause_s(num_failures))

    async def _connect_and_serve(self, session: aiohttp.ClientSession) -> None:
        """One life of the connection, from the upgrade to its end."""
        nonce = self._sources.random_bits(8 * NONCE_BYTES).to_bytes(NONCE_BYTES, "big")
        handshake = Handshake(self._address.pair_key, self._gateway_id, nonce)
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            socket = await session.ws_connect(
                self._address.url.rstrip("/") + WIRE_PATH,
                headers=handshake.headers,
                max_msg_size=MAX_FRAME_BYTES,
                compress=0,
                timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_TIMEOUT_S),  # pyright: ignore[reportCallIssue]
                ssl=create_ssl_context(self._address),
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
            return handshake.answer(message.data)
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
        self._connection = connection
        log.info("node_connected", node_id=node_id)
        await connection.run(hello)

    def on_report(self, report: NodeReport) -> None:
        """Passes on what the node says of itself."""
        self._listener.record_report(report)

    def on_lost(self) -> None:
        """Forgets the connection and says so, before its streams fail and look for another node."""
        self._connection = None
        self._listener.record_link_lost(self._address.node_id)
        log.warning("node_connection_lost", node_id=self._address.node_id)

    def _choose_pause_s(self, num_failures: int) -> float:
        """Half to all of the back-off, so that gateways do not return in step."""
        longest = min(_FIRST_PAUSE_S * 2 ** min(num_failures, 16), _LONGEST_PAUSE_S)
        share = self._sources.random_bits(_JITTER_BITS) / 2**_JITTER_BITS
        return longest * (0.5 + share / 2)


def create_ssl_context(address: NodeAddress) -> ssl.SSLContext | bool:
    """The trust for `wss://`: the configured issuers, else the system's."""
    if address.ca_file is None:
        return True
    return ssl.create_default_context(cafile=str(address.ca_file))
