"""Drains of nodes in the database: `NodeAdministration` on SQLAlchemy.

Owns the statements on `node_drains`, one row per node. Must not know which nodes there are: that is
in the gateways' settings. Read next: `gateway.routing.drain_desk`, which carries drains out.
"""

from typing import Any, Final

from sqlalchemy import delete, func, insert, select

from contracts.errors import InvalidRequest, NotFound
from contracts.fleet_view import NodeDrain
from contracts.ids import GatewayId, NodeId, RegionId, is_node_id
from tenancy.changes import Action
from tenancy.store import ActingStore, Store
from tenancy.tables import node_drains

MAX_DRAINS: Final = 4096


class NodeDrainList(Store):
    """Reads the drains."""

    async def list_node_drains(self) -> list[NodeDrain]:
        """Every drain, in order of node."""
        query = select(node_drains).order_by(node_drains.c.node_id)
        async with self._database.read() as connection:
            rows = await connection.execute(query)
            return [
                NodeDrain(
                    node_id=NodeId(row.node_id),
                    begun_unix_s=row.begun_unix_s,
                    move_after_s=row.move_after_s,
                )
                for row in rows
            ]


class NodeDrainStore(NodeDrainList, ActingStore):
    """Begins, lists and ends drains."""

    async def drain_node(self, node_id: NodeId, move_after_s: int | None = None) -> NodeDrain:
        """The drain that begins now, instead of one before; gateways see it with the next epoch.

        Raises: `InvalidRequest`.
        """
        self._require_platform()
        if not is_node_id(node_id):
            raise InvalidRequest("A drain is of one node.", param="node_id")
        if move_after_s is not None and move_after_s < 0:
            raise InvalidRequest("`move_after_s` cannot be negative.", param="move_after_s")
        row: dict[str, Any] = {
            "node_id": node_id,
            "begun_unix_s": int(self._clock()),
            "move_after_s": move_after_s,
        }
        async with self._change(Action.NODE_DRAIN) as change:
            connection = change.connection
            await connection.execute(delete(node_drains).where(node_drains.c.node_id == node_id))
            count = await connection.scalar(select(func.count()).select_from(node_drains))
            if count is not None and count >= MAX_DRAINS:
                raise InvalidRequest(f"{MAX_DRAINS} nodes are drained already.", param="node_id")
            await connection.execute(insert(node_drains).values(row))
            change.note(node_id, **row)
        return NodeDrain(**row)

    async def undrain_node(self, node_id: NodeId) -> None:
        """The node gets requests again. Raises: `NotFound`."""
        self._require_platform()
        if not is_node_id(node_id):  # not even the database need read it
            raise NotFound("This node is not drained.")
        async with self._change(Action.NODE_UNDRAIN) as change:
            result = await change.connection.execute(
                delete(node_drains).where(node_drains.c.node_id == node_id)
            )
            if not result.rowcount:
                raise NotFound("This node is not drained.")
            change.note(node_id, node_id=node_id)

    async def note_node_key(self, node_id: NodeId, key_name: str) -> None:
        """A gateway and the node share another key: the log has its name, the store has no key."""
        self._require_platform()
        async with self._change(Action.NODE_KEY_ROTATE, moves_epoch=False) as change:
            change.note(node_id, key=key_name)

    async def note_enrolment(
        self, node_id: NodeId, gateway_id: GatewayId, region: RegionId, key_name: str
    ) -> None:
        """A gateway is about to take the node up, with a key of this name, as one of `region`."""
        self._require_platform()
        async with self._change(Action.NODE_ENROL, moves_epoch=False) as change:
            change.note(node_id, gateway_id=gateway_id, region=region, key=key_name)

    async def note_removal(self, node_id: NodeId, gateway_id: GatewayId) -> None:
        """A gateway is about to end the node's enrolment."""
        self._require_platform()
        async with self._change(Action.NODE_REMOVE, moves_epoch=False) as change:
            change.note(node_id, gateway_id=gateway_id)

    async def list_node_drains(self) -> list[NodeDrain]:
        """Every drain, in order of node."""
        self._require_platform()
        return await super().list_node_drains()
