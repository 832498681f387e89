"""All links of this gateway: opens streams at nodes by their id and keeps every link up.

Owns the client session and the tasks of the links. Read next: `gateway.upstream.link`.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

import aiohttp

from contracts.errors import NodeUnreachable, PoolSaturated, ServiceError, ServiceStopping
from contracts.grant import Grant
from contracts.ids import GatewayId, NodeId
from contracts.kv_transfer import KvTicket
from contracts.placement import PlacementPlan
from gateway.settings import LimitSettings, NodeSettings
from gateway.sources import Sources
from gateway.upstream.connection import StreamBounds
from gateway.upstream.link import FleetListener, NodeLink
from gateway.upstream.node_address import NodeAddress, create_session
from gateway.upstream.node_stream import NodeStream
from gateway.upstream.pair_key_file import load_pair_key

_SWEEP_S: Final = 0.25
CreateLink = Callable[[NodeAddress], NodeLink]


class NodeLinks:
    """The links by node."""

    def __init__(self, addresses: Iterable[NodeAddress], create_link: CreateLink) -> None:
        """Not connected yet; see `start`."""
        self._create_link = create_link
        self._links: dict[NodeId, NodeLink] = {}
        for address in addresses:
            self._links[address.node_id] = create_link(address)
        self._is_stopping = False
        self._session: aiohttp.ClientSession | None = None
        self._tasks: dict[NodeId, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        """Of nodes that were dismissed."""
        self._sweeper: asyncio.Task[None] | None = None

    @property
    def num_streams(self) -> int:
        """Streams that are open now, over all links."""
        return sum(link.num_streams for link in self._links.values())

    @property
    def up(self) -> dict[str, bool]:
        """Which links stand."""
        return {str(node_id): link.is_up for node_id, link in self._links.items()}

    def open(
        self, node_id: NodeId, grant: Grant, body: bytes, ticket: KvTicket | None = None
    ) -> NodeStream:
        """Starts a stream at a node; with `ticket`, for one half of a generation.

        Raises: `NodeUnreachable`, `ServiceStopping`.
        """
        if self._is_stopping:
            raise _create_stopping()
        return self._get(node_id).open(grant, body, ticket)

    def is_up(self, node_id: NodeId) -> bool:
        """True while a proven connection to the node stands."""
        link = self._links.get(node_id)
        return link is not None and link.is_up

    def admit(self, address: NodeAddress) -> None:
        """One more node, to which a link is kept up from now on."""
        link = self._links[address.node_id] = self._create_link(address)
        if self._session is not None:
            self._tasks[address.node_id] = asyncio.create_task(link.run(self._session))

    def move(self, node_id: NodeId, url: str) -> None:
        """The node is reached at `url`, from the next connection on."""
        self._get(node_id).move(url)

    def dismiss(self, node_id: NodeId) -> None:
        """Ends the link; streams that are still open there fail, and go on elsewhere."""
        del self._links[node_id]
        task = self._tasks.pop(node_id, None)
        if task is not None:
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
            task.cancel()

    def place(self, plan: PlacementPlan) -> None:
        """Tells the plan's node where its models should be. Raises: `NodeUnreachable`."""
        self._get(plan.node_id).place(plan)

    def move_streams(self, node_id: NodeId) -> int:
        """Ends the node's streams on our side, so that they go on elsewhere; how many there were.

        What cannot go on there ends with an error.
        """
        link = self._links.get(node_id)
        return 0 if link is None else link.end_streams(_create_move())

    async def renew_key(self, node_id: NodeId) -> str:
        """The name of the key that this gateway and the node share from now on.

        Raises: `NodeUnreachable`, `Conflict` when one of the two cannot keep it.
        """
        return await self._get(node_id).renew_key()

    def end_streams(self) -> None:
        """Ends every stream, and every one to come, with the news that this process stops."""
        self._is_stopping = True
        for link in self._links.values():
            link.end_streams(_create_stopping())

    async def start(self) -> None:
        """Begins to connect to every node; returns at once."""
        self._session = create_session()
        for node_id, link in self._links.items():
            self._tasks[node_id] = asyncio.create_task(link.run(self._session))
        self._sweeper = asyncio.create_task(self._sweep())

    async def close(self) -> None:
        """Ends every link; streams that are still open fail."""
        tasks = [*self._tasks.values(), *self._ending]
        if self._sweeper is not None:
            tasks.append(self._sweeper)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    def _get(self, node_id: NodeId) -> NodeLink:
        """The link to a node. Raises: `NodeUnreachable`."""
        link = self._links.get(node_id)
        if link is None:
            raise NodeUnreachable("The node is not known to this gateway.")
        return link

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            for link in tuple(self._links.values()):
                link.sweep()


def _create_move() -> ServiceError:
    """The reason why streams of a node that is being emptied end: no fault of the node's."""
    return PoolSaturated(
        "The request's node is being emptied, and no other could go on with it. Please try again."
    )


def _create_stopping() -> ServiceError:
    """The reason why streams end with the process."""
    return ServiceStopping("This gateway is stopping, please try again.", retry_after_s=1)


def create_node_links(
    nodes: Iterable[NodeSettings],
    gateway_id: GatewayId,
    limits: LimitSettings,
    silence_s: float,
    listener: FleetListener,
    sources: Sources,
) -> NodeLinks:
    """Links to `nodes`, their keys loaded. Raises: `SettingsError`."""
    bounds = StreamBounds(limits.queue_deadline_s, limits.request_deadline_s, silence_s)

    def create_link(address: NodeAddress) -> NodeLink:
        return NodeLink(address, gateway_id, listener, bounds, sources)

    addresses = [
        NodeAddress(
            node.node_id, node.url, load_pair_key(node.key_file), node.ca_file, node.key_file
        )
        for node in nodes
    ]
    return NodeLinks(addresses, create_link)
