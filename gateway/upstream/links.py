"""All links of this gateway: opens streams at nodes by their id and keeps every link up.

Owns the client session and the tasks of the links. Read next: `gateway.upstream.link`.
"""

import asyncio
from collections.abc import Iterable
from typing import Final

import aiohttp

from contracts.errors import NodeUnreachable
from contracts.grant import Grant
from contracts.ids import GatewayId, NodeId
from contracts.placement import PlacementPlan
from gateway.settings import LimitSettings, NodeSettings
from gateway.sources import Sources
from gateway.upstream.connection import StreamBounds
from gateway.upstream.handshake import load_pair_key
from gateway.upstream.link import FleetListener, NodeAddress, NodeLink
from gateway.upstream.node_stream import NodeStream

_SWEEP_S: Final = 0.25


class NodeLinks:
    """The links by node."""

    def __init__(self, links: dict[NodeId, NodeLink]) -> None:
        """Not connected yet; see `start`."""
        self._links = links
        self._session: aiohttp.ClientSession | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def num_streams(self) -> int:
        """Streams that are open now, over all links."""
        return sum(link.num_streams for link in self._links.values())

    @property
    def up(self) -> dict[str, bool]:
        """Which links stand."""
        return {str(node_id): link.is_up for node_id, link in self._links.items()}

    def open(self, node_id: NodeId, grant: Grant, body: bytes) -> NodeStream:
        """Starts a stream at a node. Raises: `NodeUnreachable`."""
        return self._get(node_id).open(grant, body)

    def place(self, plan: PlacementPlan) -> None:
        """Tells the plan's node where its models should be. Raises: `NodeUnreachable`."""
        self._get(plan.node_id).place(plan)

    async def start(self) -> None:
        """Begins to connect to every node; returns at once."""
        self._session = aiohttp.ClientSession()
        self._tasks = [
            asyncio.create_task(link.run(self._session)) for link in self._links.values()
        ]
        self._tasks.append(asyncio.create_task(self._sweep()))

    async def close(self) -> None:
        """Ends every link; streams that are still open fail."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
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
            for link in self._links.values():
                link.sweep()


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
    links: dict[NodeId, NodeLink] = {}
    for node in nodes:
        pair_key = load_pair_key(node.key_file)
        address = NodeAddress(node.node_id, node.url, pair_key, node.ca_file)
        links[node.node_id] = NodeLink(address, gateway_id, listener, bounds, sources)
    return NodeLinks(links)
