"""Where plans of weights pass through on their way to nodes, and what operators change in them.

Owns the last plan of every node. A planner's plan replaces the one before; an operator's rule
amends it at once, so that operators need no planner. Must not know how either is decided nor what
carries it. Read next: `contracts.placement`, `gateway.api.placement_pages`.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from contracts.errors import Conflict, NodeUnreachable, NotFound
from contracts.fleet_view import FleetView, NodeView, PlacementRule
from contracts.ids import BootId, GatewayId, ModelName, NodeId
from contracts.placement import PlacementPlan, PlacementTarget, Tier
from gateway.routing.fleet import Fleet
from gateway.routing.route_plan import NodeSnapshot
from gateway.sources import Sources

SendPlan = Callable[[PlacementPlan], None]
"""Brings a plan to its node. Raises: `NodeUnreachable`."""
_DEPTH: Final = {Tier.GPU: 0, Tier.HOST: 1, Tier.DISK: 2, Tier.REMOTE: 3}
_BOOT_BITS: Final = 64


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

    def put(self, plan: PlacementPlan) -> None:
        """Sends a planner's plan to its node.

        Raises: `NotFound` (node), `Conflict` for another life of the node, for one that moves
        nothing and for a plan that is older than the last, `NodeUnreachable`.
        """
        node = self._find(plan.node_id)
        if node.boot_id != plan.boot_id:
            raise Conflict("The node has started again since that plan was made.")
        if not node.placements:
            raise Conflict("The node does not move weights.")
        last = self._find_last(node)
        if last is not None and plan.number <= last.number:
            raise Conflict(f"The node has a later plan: {last.number}.")
        self._pass_on(plan)

    def carry_out(self, rule: PlacementRule) -> None:
        """Amends the plans of all nodes that have the rule's model; those out of reach are left.

        Without a planner nobody takes it back: a rule that ends is remembered by whoever plans.
        """
        tier = rule.find_tier(self._sources.unix_s())
        if tier is None:
            return
        having = [n for n in self._fleet.snapshots if n.is_connected and rule.model in n.placements]
        if tier is not Tier.DISK:
            having = _choose_keepers(having, rule.model)
        for node in having:
            try:
                self._pass_on(self._amend(node, rule, tier))
            except NodeUnreachable:
                continue

    def describe(self, rules: tuple[PlacementRule, ...]) -> FleetView:
        """The fleet as hot standby reads it."""
        return FleetView(
            gateway_id=self._gateway_id,
            boot_id=self._boot_id,
            region=self._fleet.catalogue.own,
            unix_ms=int(self._sources.unix_s() * 1000),
            nodes=tuple(self._to_view(node) for node in self._fleet.snapshots),
            demand=self._fleet.demand.list_samples(),
            rules=rules,
        )

    def _pass_on(self, plan: PlacementPlan) -> None:
        self._send(plan)
        self._plans[plan.node_id] = plan

    def _find(self, node_id: NodeId) -> NodeSnapshot:
        for node in self._fleet.snapshots:
            if node.node_id == node_id:
                return node
        raise NotFound("No such node.")

    def _find_last(self, node: NodeSnapshot) -> PlacementPlan | None:
        """The last plan of this life of the node."""
        last = self._plans.get(node.node_id)
        return last if last is not None and last.boot_id == node.boot_id else None

    def _amend(self, node: NodeSnapshot, rule: PlacementRule, tier: Tier) -> PlacementPlan:
        """The node's last plan, or things as they are, with one model elsewhere."""
        assert node.boot_id is not None
        last = self._find_last(node)
        number = int(self._sources.unix_s() * 1000)
        if last is None:
            targets = tuple(
                PlacementTarget(name=name, tier=model.tier, is_pinned=model.is_pinned)
                for name, model in node.placements.items()
            )
            last = PlacementPlan(
                node_id=node.node_id, boot_id=node.boot_id, number=0, targets=targets
            )
        is_pinned = rule.is_pinned(self._sources.unix_s())
        wanted = PlacementTarget(name=rule.model, tier=tier, is_pinned=is_pinned)
        others = tuple(target for target in last.targets if target.name != rule.model)
        order = tuple(name for name in last.eviction_order if name != rule.model)
        if tier is Tier.GPU:
            order = (*order, rule.model)
        return msgspec.structs.replace(
            last,
            number=max(number, last.number + 1),
            targets=(*others, wanted),
            eviction_order=order,
        )

    def _to_view(self, node: NodeSnapshot) -> NodeView:
        region, age_s = node.region, self._sources.monotonic_s() - node.reported_s
        return NodeView(
            node_id=node.node_id,
            boot_id=node.boot_id,
            region=region,
            jurisdiction=node.jurisdiction,
            latency_s=0.0 if region is None else self._fleet.catalogue.measure_latency_s(region),
            is_connected=node.is_connected,
            is_draining=node.is_draining,
            report_age_s=None if region is None else round(age_s, 3),
            placements=tuple(node.placements.values()),
            loads=tuple(node.loads.values()),
            memory=node.memory,
            plan=self._find_last(node),
        )


def _choose_keepers(nodes: list[NodeSnapshot], model: ModelName) -> list[NodeSnapshot]:
    """One node of each region, the one where the model is nearest."""
    chosen: dict[str, NodeSnapshot] = {}
    for node in sorted(nodes, key=lambda node: (_DEPTH[node.placements[model].tier], node.node_id)):
        chosen.setdefault(node.region or "", node)
    return list(chosen.values())
