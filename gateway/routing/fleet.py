"""What is known of the nodes: their last reports, what was sent to them since and how that went.

Owns the only mutable view of the fleet; one event loop reads and writes it. Must not know the
wires that bring the reports. Read next: `gateway.routing.choose_node` (the decision, pure),
`gateway.routing.locality` (caches and sessions), `gateway.routing.node_health`.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final

import structlog

from contracts.fleet import ModelCard, NodeReport
from contracts.ids import ModelName, NodeId, RegionId, is_node_id
from contracts.placement import MemoryUse
from gateway.routing.choose_node import choose_node
from gateway.routing.decisions import Decisions
from gateway.routing.demand import DemandRecorder
from gateway.routing.locality import Locality
from gateway.routing.node_health import NodeHealth
from gateway.routing.regions import RegionCatalogue
from gateway.routing.route_plan import (
    FleetState,
    NodeSnapshot,
    Ring,
    RouteBounds,
    RouteNeed,
    RoutePlan,
    Sent,
)
from gateway.sources import Sources

log = structlog.get_logger(__name__)
_DRAW_BITS: Final = 24
_SHOWN: Final = 64
"""Characters of what a node says that a line of the log repeats."""


class Fleet:
    """The nodes that this gateway is configured for."""

    def __init__(
        self,
        regions: Mapping[NodeId, RegionId | None],
        bounds: RouteBounds,
        catalogue: RegionCatalogue,
        locality: Locality,
        sources: Sources,
    ) -> None:
        """Every node starts as one that is not connected and serves nothing.

        `regions` are those that the configuration vouches for; None leaves it to the node.
        """
        self._vouched: Final = dict(regions)
        self._bounds = bounds
        self.catalogue: Final = catalogue
        self._sources = sources
        self._nodes = {node_id: _create_unknown(node_id) for node_id in regions}
        self._snapshots: tuple[NodeSnapshot, ...] | None = None
        self._rings: dict[ModelName, tuple[Ring, ...]] = {}
        self._sent: dict[tuple[NodeId, ModelName], Sent] = {}
        self.health: Final = NodeHealth(self._nodes)
        self.locality: Final = locality
        self.demand: Final = DemandRecorder()
        self.decisions: Final = Decisions()

    @property
    def snapshots(self) -> tuple[NodeSnapshot, ...]:
        """Every configured node, in order of configuration."""
        if self._snapshots is None:
            self._snapshots = tuple(self._nodes.values())
        return self._snapshots

    @property
    def has_choice(self) -> bool:
        """True when it matters where caches and sessions are."""
        return len(self._nodes) > 1

    def plan(self, need: RouteNeed) -> RoutePlan:
        """The node for a request, which counts as sent there until `release`.

        Raises: what `choose_node` raises.
        """
        now_s = self._sources.monotonic_s()
        rings = self._list_rings(need.model)
        hints = self.locality.find_hints(need, rings, now_s)
        plan = choose_node(
            self._describe(rings, now_s), need, self._bounds, now_s, self._draw, hints
        )
        sent = self._sent.setdefault((plan.node_id, need.model), Sent())
        sent.num_requests += 1
        sent.num_tokens += plan.num_new_tokens
        self.health.note_sent(plan.node_id)
        self.locality.note_sent(need, plan.node_id, now_s)
        return plan

    def note_demand(self, need: RouteNeed) -> None:
        """A request has come for a model that is offered; its further attempts are no demand."""
        allowed = need.allowed_regions
        if allowed is not None:  # clients may name regions that are none: those make no new key
            rings = self._list_rings(need.model)
            allowed = tuple(sorted(ring.region for ring in rings if ring.region in allowed))
        self.demand.note(need.model, allowed, int(self._sources.unix_s() * 1000))

    def release(self, plan: RoutePlan) -> None:
        """The request of `plan` is over; a report since then has counted it, or its end, itself."""
        self.health.note_over(plan.node_id)
        if self._nodes[plan.node_id].num_reports == plan.num_reports:
            sent = self._sent[plan.node_id, plan.card.name]
            sent.num_requests -= 1
            sent.num_tokens -= plan.num_new_tokens

    def note_failure(self, node_id: NodeId) -> None:
        """A node has failed a request, and not because it went away, which is counted once."""
        if self._nodes[node_id].is_connected:
            self.health.note_failure(node_id, self._sources.monotonic_s())

    def record_report(self, report: NodeReport) -> None:
        """Replaces what was known of the node; what had been sent before is in its counts.

        A region that is not a plain name is refused with the report: it travels in headers. So is
        one whose jurisdiction contradicts the catalogue: that would be the law's own table. And so
        is a region other than the one the configuration vouches for.
        """
        vouched = self._vouched[report.node_id]
        if vouched not in (None, report.region):
            log.error(
                "report_of_another_region",
                node_id=report.node_id,
                said=report.region[:_SHOWN],
                configured=vouched,
            )
            return
        jurisdiction = self.catalogue.find_jurisdiction(report.region)
        if not is_node_id(report.region) or jurisdiction not in (None, report.jurisdiction):
            log.error("report_malformed", node_id=report.node_id)
            return
        before = self._nodes[report.node_id]
        if before.boot_id != report.boot_id:
            self.locality.forget(report.node_id)
        node = NodeSnapshot(
            node_id=report.node_id,
            is_connected=True,
            boot_id=report.boot_id,
            region=report.region,
            jurisdiction=report.jurisdiction,
            is_draining=report.is_draining,
            reported_s=self._sources.monotonic_s(),
            num_reports=before.num_reports + 1,
            cards={card.name: card for card in report.models},
            loads={load.name: load for load in report.loads},
            failed={model.name: model.reason for model in report.failed},
            placements={placement.name: placement for placement in report.placements},
            memory=report.memory,
        )
        self._put(node)
        self.locality.note_capacity(report.node_id, report.loads)
        for model in (*before.cards, *node.cards):
            self._sent.pop((report.node_id, model), None)

    def record_link_lost(self, node_id: NodeId) -> None:
        """Keeps what the node said of its models, so that they stay known while it is away.

        One that has not said that it is going comes back on probation.
        """
        node = self._nodes[node_id]
        if node.is_connected and not node.is_draining:
            self.health.note_gone(node_id)
        self._put(replace(node, is_connected=False))

    def find_model(self, name: ModelName) -> ModelCard | None:
        """A model that any node has offered; of several cards the last, as in `list_models`."""
        for node in reversed(self.snapshots):
            card = node.cards.get(name)
            if card is not None:
                return card
        return None

    def list_models(self) -> list[ModelCard]:
        """Every model that any node has offered, once, in order of name."""
        cards = {card.name: card for node in self.snapshots for card in node.cards.values()}
        return [cards[name] for name in sorted(cards)]

    def list_regions(self, jurisdictions: Iterable[str]) -> set[RegionId]:
        """Regions that are known to lie in one of `jurisdictions`, and of which no node says
        otherwise: whoever is kept to them may go to any node there.
        """
        wanted = set(jurisdictions)
        if not wanted:
            return set()
        inside, outside = self.catalogue.list_regions(wanted), set[RegionId]()
        for node in self.snapshots:
            if node.region is not None:
                (inside if node.jurisdiction in wanted else outside).add(node.region)
        return inside - outside

    def find_context_window(self, need: RouteNeed) -> int:
        """The longest context that any node has offered with the model.

        Raises: what `choose_node` raises, when no node has ever offered it.
        """
        window = 0
        for node in self.snapshots:
            card = node.cards.get(need.model)
            if card is not None and card.context_window > window:
                window = card.context_window
        if not window:
            now_s = self._sources.monotonic_s()
            choose_node(self._describe((), now_s), need, self._bounds, now_s, self._draw)
        return window

    def list_troubled(self) -> Collection[NodeId]:
        """Nodes that have failed lately and get few requests or none."""
        return self.health.list_troubled(self._sources.monotonic_s())

    def has_ready_model(self) -> bool:
        """True when some node could serve some model now, if only after waking it."""
        now_s = self._sources.monotonic_s()
        return any(
            node.is_connected
            and not node.is_draining
            and now_s - node.reported_s <= self._bounds.report_ttl_s
            and any(node.find_wake_s(model) is not None for model in node.loads)
            for node in self.snapshots
        )

    def _describe(self, rings: tuple[Ring, ...], now_s: float) -> FleetState:
        """What a choice at this moment rests on."""
        return FleetState(self._nodes, rings, self._sent, self.health.list_troubled(now_s))

    def _list_rings(self, model: ModelName) -> tuple[Ring, ...]:
        """Who has offered `model`, by region, nearest first."""
        rings = self._rings.get(model)
        if rings is None:
            members: dict[RegionId, list[NodeId]] = {}
            for node in self.snapshots:
                if node.region is not None and model in node.cards:
                    members.setdefault(node.region, []).append(node.node_id)
            found = [
                Ring(self.catalogue.measure_latency_s(region), region, tuple(node_ids))
                for region, node_ids in members.items()
            ]
            rings = tuple(sorted(found, key=lambda ring: (ring.latency_s, ring.region)))
            if rings:  # names that clients make up are not remembered
                self._rings[model] = rings
        return rings

    def _put(self, snapshot: NodeSnapshot) -> None:
        before = self._nodes[snapshot.node_id]
        self._nodes[snapshot.node_id] = snapshot
        self._snapshots = None
        if before.region != snapshot.region or before.cards.keys() != snapshot.cards.keys():
            self._rings.clear()

    def _draw(self, count: int) -> int:
        """A number below `count`."""
        return self._sources.random_bits(_DRAW_BITS) % count


def _create_unknown(node_id: NodeId) -> NodeSnapshot:
    """A node that nothing was heard of."""
    return NodeSnapshot(
        node_id=node_id,
        is_connected=False,
        boot_id=None,
        region=None,
        jurisdiction="",
        is_draining=False,
        reported_s=float("-inf"),
        num_reports=0,
        cards={},
        loads={},
        failed={},
        placements={},
        memory=MemoryUse(),
    )
