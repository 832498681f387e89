"""Where plans of weights pass through on their way to nodes, and what operators change in them.

Owns the last plan of every node. A planner's plan replaces the one before; an operator's rule
amends it at once, so that operators need no planner. Must not know how either is decided nor what
carries it. Read next: `contracts.placement`, `gateway.api.placement_pages`.
"""

import contextlib
from collections.abc import Callable
from typing import Final

import msgspec

from contracts.errors import Conflict, NodeUnreachable
from contracts.fleet_view import FleetView, NodeView, PlacementRule
from contracts.ids import BootId, GatewayId, ModelName, NodeId
from contracts.placement import PlacementPlan, PlacementTarget, Tier
from gateway.routing.fleet import Fleet
from gateway.routing.plan_amendment import DEPTHS, amend, release
from gateway.routing.route_plan import NodeSnapshot
from gateway.sources import Sources

SendPlan = Callable[[PlacementPlan], None]
"""Brings a plan to its node. Raises: `NodeUnreachable`."""
_BOOT_BITS: Final = 64
_MAX_AHEAD_MS: Final = 86_400_000
"""Plans are numbered by the time in milliseconds, or one more than the last. A number far from that
would leave no room for later plans, which nodes then pass over for the rest of their lives."""


class PlacementDesk:
    """Plans by node."""

    def __init__(
        self, fleet: Fleet, gateway_id: GatewayId, send: SendPlan, sources: Sources
    ) -> None:
        """No node has a plan yet."""
        self._fleet = fleet
        self._gateway_id = gateway_id
        self._boot_id = BootId(f"{sources.random_bits(_BOOT_BITS):016x}")
        self._send = send
        self._sources = sources
        self._plans: dict[NodeId, PlacementPlan] = {}
        self._standby_s: float | None = None
        """When hot standby last read here."""

    @property
    def standby_silent_s(self) -> float:
        """Since hot standby last read here; 0 where it never has."""
        return 0.0 if self._standby_s is None else self._sources.monotonic_s() - self._standby_s

    def note_standby(self) -> None:
        """Hot standby reads."""
        self._standby_s = self._sources.monotonic_s()

    def put(self, plan: PlacementPlan) -> None:
        """Sends a planner's plan to its node.

        Raises: `NotFound` (node), `Conflict` for another life of the node, for one that moves
        nothing, for a role that it may not take, for a plan that is older than the last and for one
        of a time to come, `NodeUnreachable`.
        """
        node = self._fleet.roster.require(plan.node_id)
        if node.boot_id != plan.boot_id:
            raise Conflict("The node has started again since that plan was made.")
        if not node.placements and not node.roles:
            raise Conflict("The node neither moves weights nor changes its role.")
        if plan.role is not None and plan.role.role not in node.roles:
            raise Conflict(f"The node's settings do not let it be there for {plan.role.role}.")
        last = self._find_last(node)
        if last is not None and plan.number <= last.number:
            raise Conflict(f"The node has a later plan: {last.number}.")
        if plan.number > self._sources.unix_s() * 1000 + _MAX_AHEAD_MS:
            raise Conflict("The plan's number is more than a day ahead of the time in ms.")
        self._pass_on(plan)

    def carry_out(self, rule: PlacementRule) -> None:
        """Amends the plans of nodes that have the rule's model; those out of reach are left.

        Without a planner nobody takes it back when it ends.
        """
        unix_s = self._sources.unix_s()
        tier, nodes = rule.find_tier(unix_s), self._list_having(rule.model)
        if tier is None:
            self.forget(rule.model)
            return
        wanted = PlacementTarget(name=rule.model, tier=tier, is_pinned=rule.is_pinned(unix_s))
        for node in nodes if tier is Tier.DISK else _choose_keepers(nodes, rule.model):
            self._try(amend(self._renew(node), wanted, node.placements, node.memory))

    def forget(self, model: ModelName) -> None:
        """No rule holds for the model any more: whoever has it pinned lets it go when asked."""
        for node in self._list_having(model):
            if self._find_last(node) is not None or node.placements[model].is_pinned:
                self._try(release(self._renew(node), model))

    def describe(self, rules: tuple[PlacementRule, ...]) -> FleetView:
        """The fleet as hot standby reads it."""
        return FleetView(
            gateway_id=self._gateway_id,
            boot_id=self._boot_id,
            region=self._fleet.roster.catalogue.own,
            unix_ms=int(self._sources.unix_s() * 1000),
            nodes=tuple(self._to_view(node) for node in self._fleet.roster.snapshots),
            demand=self._fleet.demand.list_samples(),
            rules=rules,
        )

    def _list_having(self, model: ModelName) -> list[NodeSnapshot]:
        """Nodes in reach that move the model's weights."""
        nodes = self._fleet.roster.snapshots
        return [node for node in nodes if node.is_connected and model in node.placements]

    def _try(self, plan: PlacementPlan) -> None:
        """Sends a plan if its node can be reached."""
        with contextlib.suppress(NodeUnreachable):
            self._pass_on(plan)

    def _pass_on(self, plan: PlacementPlan) -> None:
        """Sends a plan, and forgets those of nodes that have left."""
        self._send(plan)
        self._plans[plan.node_id] = plan
        for node_id in self._plans.keys() - self._fleet.roster.nodes.keys():
            del self._plans[node_id]

    def _find_last(self, node: NodeSnapshot) -> PlacementPlan | None:
        """The last plan of this life of the node."""
        last = self._plans.get(node.node_id)
        return last if last is not None and last.boot_id == node.boot_id else None

    def _renew(self, node: NodeSnapshot) -> PlacementPlan:
        """The node's last plan, or things as they are, under a new number."""
        assert node.boot_id is not None
        number = int(self._sources.unix_s() * 1000)
        last = self._find_last(node)
        if last is not None:
            # Of its role others may have told the node something else since then.
            return msgspec.structs.replace(last, number=max(number, last.number + 1), role=None)
        targets = tuple(
            PlacementTarget(name=name, tier=model.tier, is_pinned=model.is_pinned)
            for name, model in node.placements.items()
        )
        return PlacementPlan(
            node_id=node.node_id, boot_id=node.boot_id, number=number, targets=targets
        )

    def _to_view(self, node: NodeSnapshot) -> NodeView:
        region, age_s = node.region, self._sources.monotonic_s() - node.reported_s
        catalogue = self._fleet.roster.catalogue
        return NodeView(
            node_id=node.node_id,
            boot_id=node.boot_id,
            region=region,
            jurisdiction=node.jurisdiction,
            latency_s=0.0 if region is None else catalogue.measure_latency_s(region),
            is_connected=node.is_connected,
            is_draining=node.is_leaving,
            report_age_s=None if region is None else round(age_s, 3),
            placements=tuple(node.placements.values()),
            loads=tuple(node.loads.values()),
            memory=node.memory,
            plan=self._find_last(node),
            role=node.role,
            roles=node.roles,
        )


def _choose_keepers(nodes: list[NodeSnapshot], model: ModelName) -> list[NodeSnapshot]:
    """One node of each region that stays, the one where the model is nearest."""
    chosen: dict[str, NodeSnapshot] = {}

    def rank(node: NodeSnapshot) -> tuple[bool, int, str]:
        return node.is_leaving, DEPTHS[node.placements[model].tier], node.node_id

    for node in sorted(nodes, key=rank):
        chosen.setdefault(node.region or "", node)
    return list(chosen.values())
