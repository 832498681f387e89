"""Nodes as a gateway last heard of them, and who gets nothing new, over the operators' port.

Owns the mapping from routes to tenancy's drains; must not know how streams are moved. Nothing here
names a tenant. Read next: `gateway.routing.drain_desk`, `gateway.routing.fleet`.
"""

from math import isfinite
from typing import Annotated, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from contracts.errors import InvalidRequest
from contracts.fleet import FailedModel
from contracts.fleet_view import NodeState
from contracts.ids import NodeId
from gateway.api.forms import Form, FormReader, refuse_unknown_query
from gateway.api.pages import reply
from gateway.api.services import PageServices
from gateway.auth.caller import Caller
from gateway.routing.route_plan import NodeSnapshot
from gateway.routing.snapshots import create_unknown
from tenancy.administration import Administration

MAX_MOVE_AFTER_S: Final = 86_400


class DrainSet(Form, frozen=True, kw_only=True):
    """A node that is to get nothing new."""

    node_id: NodeId
    move_after_s: Annotated[int, msgspec.Meta(ge=0, le=MAX_MOVE_AFTER_S)] | None = None
    """How long streams may go on there before they are continued elsewhere; left out: to their
    end."""


class KeyRotation(Form, frozen=True, kw_only=True):
    """A node that is to share another key with this gateway."""

    node_id: NodeId


class RotatedKey(msgspec.Struct, frozen=True):
    """The key that the two share now, by its name."""

    node_id: str
    key: str


class EndedDrain(msgspec.Struct, frozen=True):
    """A node that gets requests again."""

    node_id: str


DRAIN_SET: Final = FormReader(DrainSet)
KEY_ROTATION: Final = FormReader(KeyRotation)


class NodePages:
    """Reads the nodes; begins and ends drains, and has keys replaced."""

    def __init__(self, services: PageServices) -> None:
        """Each operator acts with an administration of their own."""
        self._fleet = services.fleet
        self._drains = services.drains
        self._membership = services.membership
        self._administrations = services.administrations
        self._sources = services.sources
        self._renew_key = services.renew_key

    async def list(self, request: Request, caller: Caller) -> Response:
        """Every node with its last report, and those that are enrolled and are not in the fleet, as
        they were if they have been.
        """
        roster = self._fleet.roster
        former = {node.node_id: node for node in roster.absent if isfinite(node.reported_s)}
        absent = [
            former.get(node_id) or create_unknown(node_id)
            for node_id in self._membership.list_absent()
        ]
        return reply([self._describe(node) for node in (*roster.snapshots, *absent)])

    async def drain(self, request: Request, caller: Caller) -> Response:
        """The node gets nothing new: from here at once, from other gateways within two seconds."""
        form = await DRAIN_SET.read(request)
        self._drains.require_node(form.node_id)
        drain = await self._act(caller).drain_node(form.node_id, form.move_after_s)
        self._drains.note(drain)
        return reply(drain)

    async def undrain(self, request: Request, caller: Caller) -> Response:
        """The node in the query gets requests again, also one that has left the settings."""
        refuse_unknown_query(request, {"node_id"})
        node_id = request.query_params.get("node_id")
        if not node_id:
            raise InvalidRequest("`node_id` is missing.", param="node_id")
        await self._act(caller).undrain_node(NodeId(node_id))
        self._drains.forget(NodeId(node_id))
        return reply(EndedDrain(node_id))

    async def rotate_key(self, request: Request, caller: Caller) -> Response:
        """This gateway and the node share another key; streams between the two go on."""
        form = await KEY_ROTATION.read(request)
        self._drains.require_node(form.node_id)
        key = await self._renew_key(form.node_id)
        await self._act(caller).note_node_key(form.node_id, key)
        return reply(RotatedKey(form.node_id, key))

    def _act(self, caller: Caller) -> Administration:
        return self._administrations.act_as(caller.to_actor())

    def _describe(self, node: NodeSnapshot) -> NodeState:
        age_s = self._sources.monotonic_s() - node.reported_s
        heard_s = self._membership.find_heartbeat_age_s(node.node_id)
        return NodeState(
            node_id=node.node_id,
            boot_id=node.boot_id,
            is_connected=node.is_connected,
            is_draining=node.is_draining,
            drain=self._drains.find(node.node_id),
            region=node.region,
            jurisdiction=node.jurisdiction,
            report_age_s=None if node.region is None else round(age_s, 3),
            models=tuple(node.cards.values()),
            loads=tuple(node.loads.values()),
            failed=tuple(
                FailedModel(name=name, reason=reason) for name, reason in node.failed.items()
            ),
            role=node.role,
            suggested_role=node.suggested_role,
            heartbeat_age_s=None if heard_s is None else round(heard_s, 3),
            refusal=self._fleet.roster.find_refusal(node.node_id)
            or self._membership.find_refusal(node.node_id),
        )
