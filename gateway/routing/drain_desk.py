"""Which nodes operators have drained: read from the store, kept from new requests, then emptied.

Owns what this gateway knows of drains; the store has them for all gateways and all their lives. A
store that is away changes nothing: the last known drains hold. Must not know what carries streams.
Read next: `gateway.routing.fleet`, `gateway.upstream.links`.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from contracts.fleet_view import NodeDrain
from contracts.ids import NodeId
from gateway.routing.fleet import Fleet
from gateway.sources import Sources
from tenancy.interfaces import DrainDirectory

log = structlog.get_logger(__name__)
_LOOK_S: Final = 0.25
MoveStreams = Callable[[NodeId], int]
"""Ends a node's streams here so that they go on elsewhere; how many there were."""


class DrainDesk:
    """Drains by node."""

    def __init__(
        self, fleet: Fleet, directory: DrainDirectory, move_streams: MoveStreams, sources: Sources
    ) -> None:
        """Nothing is drained until `refresh`."""
        self._fleet = fleet
        self._directory = directory
        self._move_streams = move_streams
        self._sources = sources
        self._drains: dict[NodeId, NodeDrain] = {}
        self._num_told = 0
        """Drains that have begun or ended here."""

    def find(self, node_id: NodeId) -> NodeDrain | None:
        """The node's drain, if it has one."""
        return self._drains.get(node_id)

    def require_node(self, node_id: NodeId) -> None:
        """Raises `NotFound` for a node that this gateway is not configured for, and that is not
        enrolled: one that is away may be drained before it is back.
        """
        roster = self._fleet.roster
        if all(node.node_id != node_id for node in roster.absent):
            roster.require(node_id)

    async def refresh(self) -> None:
        """Reads the drains anew. Raises: `StoreUnavailable`, and the last known ones hold."""
        num_told = self._num_told
        drains = await self._directory.list_node_drains()
        while num_told != self._num_told:  # what was read may be from before that
            num_told = self._num_told
            drains = await self._directory.list_node_drains()
        self._set({drain.node_id: drain for drain in drains})

    def note(self, drain: NodeDrain) -> None:
        """The drain has just begun: no need to wait for the epoch."""
        self._num_told += 1
        self._set(self._drains | {drain.node_id: drain})

    def forget(self, node_id: NodeId) -> None:
        """The drain has just ended."""
        self._num_told += 1
        self._set({key: drain for key, drain in self._drains.items() if key != node_id})

    async def run(self) -> None:
        """Moves the streams of nodes whose time for them is over, for ever."""
        while True:
            self.move_overdue()
            await asyncio.sleep(_LOOK_S)

    def move_overdue(self) -> None:
        """One look at every drain."""
        unix_s = self._sources.unix_s()
        for drain in self._drains.values():
            if drain.is_over(unix_s) and (num_moved := self._move_streams(drain.node_id)):
                log.info("streams_moved", node_id=drain.node_id, num_streams=num_moved)

    def _set(self, drains: dict[NodeId, NodeDrain]) -> None:
        self._drains = drains
        self._fleet.set_drained(drains.keys())
