"""What is known of the nodes: their last reports, what was sent to them since and how that went.

Owns the only mutable view of the fleet; one event loop reads and writes it. Must not know the
wires that bring the reports. Read next: `gateway.routing.prefill_choice` (the decision, pure),
`gateway.routing.locality` (caches and sessions), `gateway.routing.node_health`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from contracts.fleet import ModelCard, NodeReport
from contracts.ids import ModelName, NodeId, RegionId
from gateway.routing.decisions import Decisions
from gateway.routing.demand import DemandRecorder
from gateway.routing.law_table import LawTable
from gateway.routing.locality import Locality
from gateway.routing.node_health import NodeHealth
from gateway.routing.prefill_choice import (
    choose_prefill,
    choose_route,
    is_still_lawful,
    list_rejections,
    may_answer,
)
from gateway.routing.rings import NO_RINGS, Rings, choose_report_ms, list_rings, measure_earshot_s
from gateway.routing.route_plan import (
    FleetState,
    NodeSnapshot,
    PrefillPlan,
    Rejection,
    RouteBounds,
    RouteNeed,
    RoutePlan,
    Sent,
)
from gateway.routing.snapshots import ReportReader, Vouched, create_unknown
from gateway.sources import Sources

_DRAW_BITS: Final = 24


class Fleet:
    """The nodes that this gateway is configured for, and those that membership has admitted."""

    def __init__(
        self,
        regions: Mapping[NodeId, RegionId | None],
        bounds: RouteBounds,
        laws: LawTable,
        locality: Locality,
        sources: Sources,
    ) -> None:
        """Every node starts as one that is not connected and serves nothing.

        `regions` are those that the configuration vouches for; None leaves it to the node.
        """
        self._vouched = {node_id: Vouched(region) for node_id, region in regions.items()}
        self._bounds = bounds
        self.laws: Final = laws
        self.catalogue: Final = laws.catalogue
        self._reader = ReportReader(laws.catalogue)
        self._sources = sources
        self._nodes = {node_id: create_unknown(node_id) for node_id in regions}
        self._former: dict[NodeId, NodeSnapshot] = {}
        """Nodes that have left, as they were."""
        self._absent: tuple[NodeSnapshot, ...] = ()
        self._drained: Collection[NodeId] = ()
        self._snapshots: tuple[NodeSnapshot, ...] | None = None
        self._rings: dict[ModelName, Rings] = {}
        self._offers: dict[ModelName, tuple[ModelCard, int]] = {}
        self._earshot_s: float | None = None
        self._sent: dict[tuple[NodeId, ModelName], Sent] = {}
        self.health: Final = NodeHealth(self._nodes)
        self.locality: Final = locality
        self.demand: Final = DemandRecorder()
        self.decisions: Final = Decisions()
        self.on_news: Callable[[NodeId], None] | None = None
        """Told of each node that may have room now. It must not raise."""

    @property
    def snapshots(self) -> tuple[NodeSnapshot, ...]:
        """Every configured node, in order of configuration, then those that have been admitted."""
        if self._snapshots is None:
            self._snapshots = tuple(self._nodes.values())
        return self._snapshots

    def has_choice(self, model: ModelName) -> bool:
        """True when it matters where caches and sessions of `model` are: several nodes have it."""
        return self._list_rings(model).has_choice

    def plan(self, need: RouteNeed, at: NodeId | None = None) -> RoutePlan:
        """The node for a request, which counts as sent there until `release`; only `at`, if given.

        Raises: what `choose_node` raises.
        """
        now_s = self._sources.monotonic_s()
        rings = self._list_rings(need.model)
        hints = self.locality.find_hints(need, rings, self._nodes, now_s)
        state = self._describe(rings, now_s)
        plan = choose_route(
            state, need, self._bounds, now_s, self._draw, self.locality.hand_over, hints, at
        )
        if plan.prefill is not None:
            self._count_sent(plan.prefill, need)
            self.locality.note_prefill(need, plan.prefill.node_id)
        self._count_sent(plan, need)
        is_proven = self.locality.note_sent(need, plan.node_id, now_s)
        return plan if is_proven else replace(plan, is_proven=False)

    def plan_prefill(self, need: RouteNeed, plan: RoutePlan) -> PrefillPlan | None:
        """Another node for the prompt of a request that `plan` has placed, in place of those tried;
        it counts as sent there. None: nobody does better than the plan's own node.
        """
        if plan.node_id not in self._nodes:
            return None
        now_s = self._sources.monotonic_s()
        rings = self._list_rings(need.model)
        hints = self.locality.find_hints(need, rings, self._nodes, now_s)
        state = self._describe(rings, now_s)
        prefill = choose_prefill(
            state, need, plan, self._bounds, now_s, self.locality.hand_over, self._draw, hints
        )
        if prefill is not None:
            self._count_sent(prefill, need)
        return prefill

    def note_demand(self, need: RouteNeed) -> None:
        """A request has come for a model that is offered; its further attempts are no demand."""
        allowed = need.allowed_regions
        if allowed is not None:  # clients may name regions that are none: those make no new key
            rings = self._list_rings(need.model)
            allowed = tuple(sorted(region for region in rings.regions if region in allowed))
        self.demand.note(need.model, allowed, int(self._sources.unix_s() * 1000))

    def release(self, plan: RoutePlan | PrefillPlan) -> None:
        """The request of `plan` is over at its node; a report since then has counted it.

        To be called as soon as the node has said so: its next report counts it no more. What a plan
        says of another node that computes the prompt is released on its own.
        """
        self.health.note_over(plan.node_id)
        node = self._nodes.get(plan.node_id)
        if node is None:
            return
        sent = self._sent.setdefault((plan.node_id, plan.card.name), Sent())
        sent.num_held -= plan.num_cached_tokens + plan.num_new_tokens
        if node.num_reports == plan.num_reports:
            sent.num_requests -= 1
            sent.num_tokens -= _count_own_tokens(plan)
        else:
            sent.num_over += 1
        self._tell(plan.node_id)

    def give_back(self, plan: RoutePlan) -> None:
        """Nothing goes where `plan` says: not for the answer, nor for its prompt elsewhere."""
        if plan.prefill is not None:
            self.release(plan.prefill)
        self.release(plan)

    def takes(self, node_id: NodeId, need: RouteNeed) -> bool:
        """True when `plan` would find the node in order and with room."""
        if node_id not in self._nodes:
            return False
        now_s = self._sources.monotonic_s()
        return may_answer(self._describe(NO_RINGS, now_s), node_id, need, self._bounds, now_s)

    def is_lawful(self, plan: RoutePlan, need: RouteNeed) -> bool:
        """True while what `plan` says is allowed by `need`, as nodes speak of themselves now."""
        return is_still_lawful(self._nodes, plan, need)

    def list_rejections(self, need: RouteNeed) -> Sequence[tuple[NodeId, Rejection]]:
        """Why each node that does not come into question for a request now does not."""
        now_s = self._sources.monotonic_s()
        return list_rejections(self._describe(NO_RINGS, now_s), need, self._bounds, now_s)

    def find(self, node_id: NodeId) -> NodeSnapshot | None:
        """The node as last heard of."""
        return self._nodes.get(node_id)

    def note_failure(self, node_id: NodeId) -> None:
        """A node has failed a request, and not because it went away, which is counted once."""
        node = self._nodes.get(node_id)
        if node is not None and node.is_connected:
            self.health.note_failure(node_id, self._sources.monotonic_s())

    def admit(self, node_id: NodeId, vouched: Vouched) -> None:
        """The node is in the fleet from now on, where operators say that it is."""
        self._vouched[node_id] = vouched
        self._note_law(node_id, vouched)
        former = self._former.pop(node_id, None)
        unknown = create_unknown(node_id, 0 if former is None else former.num_reports + 1)
        self._nodes[node_id] = replace(unknown, is_drained=node_id in self._drained)
        self._snapshots = None
        self.health.admit(node_id)

    def dismiss(self, node_id: NodeId) -> None:
        """The node is in the fleet no more; what is under way there ends by itself."""
        node = self._nodes.pop(node_id)
        del self._vouched[node_id]
        self.laws.forget(node_id)
        self._former[node_id] = replace(node, is_connected=False, loads={}, placements={})
        self._snapshots = None
        self._earshot_s = None
        self._rings.clear()
        self._offers.clear()
        self.locality.forget(node_id)
        self.health.dismiss(node_id)
        for model in node.cards:
            self._sent.pop((node_id, model), None)

    def expect(self, vouched: Mapping[NodeId, Vouched]) -> None:
        """These nodes, and no others, are counted on where operators say that they are, though they
        are not in the fleet: what they serve is not denied while they are away.
        """
        absent: list[NodeSnapshot] = []
        for node in self._absent:
            if node.node_id not in vouched and node.node_id not in self._nodes:
                self.laws.forget(node.node_id)
        for node_id, place in vouched.items():
            former = self._former.get(node_id)
            if former is None or former.region != place.region:
                former = replace(create_unknown(node_id), region=place.region)
            law = former.jurisdiction if place.jurisdiction is None else place.jurisdiction
            absent.append(replace(former, jurisdiction=law))
            self._note_law(node_id, place)
        if self._absent != (now := tuple(absent)):
            self._absent = now
            self._offers.clear()

    def record_report(self, report: NodeReport) -> None:
        """Replaces what was known of the node; what had been sent before is in its counts.

        One that contradicts what is known of the node's region is refused.
        """
        self._record(report, is_connected=True)

    def record_heartbeat(self, report: NodeReport) -> bool:
        """Takes over what a node has said in another way than to us, while it is not connected.

        False when it contradicts what operators say of it.
        """
        if self._nodes[report.node_id].is_connected:
            return not self._vouched[report.node_id].contradicts(report)
        return self._record(report, is_connected=False)

    def record_link_lost(self, node_id: NodeId) -> None:
        """Keeps what the node said of its models, so that they stay known while it is away.

        One that has not said that it is going comes back on probation.
        """
        node = self._nodes.get(node_id)
        if node is None:  # it was dismissed, and so its link has ended
            return
        if node.is_connected and not node.is_leaving:
            self.health.note_gone(node_id)
        self._put(replace(node, is_connected=False))

    def choose_report_ms(self, node_id: NodeId) -> int:
        """How often a node that connects now is to report."""
        regions = {one: it.region or self._nodes[one].region for one, it in self._vouched.items()}
        return choose_report_ms(node_id, regions, self.catalogue.measure_latency_s)

    def set_drained(self, node_ids: Collection[NodeId]) -> None:
        """These nodes, and no others, are to get nothing new."""
        self._drained = frozenset(node_ids)
        for node in self.snapshots:
            is_drained = node.node_id in node_ids
            if node.is_drained != is_drained:
                self._put(replace(node, is_drained=is_drained))
                self._tell(node.node_id)

    def find_model(self, name: ModelName) -> ModelCard | None:
        """A model that any node has offered; of several cards the last, with the largest rank of
        adapters of all, as in `list_models`.
        """
        offer = self._find_offer(name)
        return None if offer is None else offer[0]

    def list_models(self) -> list[ModelCard]:
        """Every model that any node has offered, once, in order of name."""
        names = {name for node in self.snapshots for name in node.cards}
        return [offer[0] for name in sorted(names) if (offer := self._find_offer(name))]

    def find_context_window(self, need: RouteNeed) -> int:
        """The longest context that any node has offered with the model.

        Raises: what `choose_node` raises for `need`, when none has ever offered it.
        """
        offer = self._find_offer(need.model)
        if offer is None:
            now_s = self._sources.monotonic_s()
            state = self._describe(NO_RINGS, now_s)
            choose_route(state, need, self._bounds, now_s, self._draw, self.locality.hand_over)
        assert offer is not None, "a model that no node has offered has found a node"
        return offer[1]

    def has_longer(self, card: ModelCard) -> bool:
        """True when some node offers the card's model with a longer context."""
        offer = self._find_offer(card.name)
        return offer is not None and offer[1] > card.context_window

    def list_troubled(self) -> Collection[NodeId]:
        """Nodes that have failed lately and get few requests or none."""
        return self.health.list_troubled(self._sources.monotonic_s())

    def has_ready_model(self) -> bool:
        """True when some node could serve some model now, if only after waking it."""
        now_s = self._sources.monotonic_s()
        return any(
            node.is_connected
            and not node.is_leaving
            and now_s - node.reported_s <= self._bounds.report_ttl_s
            and any(node.find_wake_s(model) is not None for model in node.loads)
            for node in self.snapshots
        )

    def _record(self, report: NodeReport, *, is_connected: bool) -> bool:
        """Takes a report over; False when it is not believed."""
        before = self._nodes.get(report.node_id)
        if before is None:
            return False
        now_s = self._sources.monotonic_s()
        vouched = self._vouched[report.node_id]
        node = self._reader.read(report, before, vouched, now_s)
        if node is None:
            return False
        if before.boot_id != node.boot_id:
            self.locality.forget(node.node_id)
        self._put(node if is_connected else replace(node, is_connected=False))
        self.laws.note(node.node_id, report.region, report.jurisdiction)
        self.locality.note_capacity(report.node_id, report.loads)
        self.locality.note_told(report, now_s, is_near=self._hears(report))
        for model in (*before.cards, *node.cards):
            self._sent.pop((report.node_id, model), None)
        self._tell(report.node_id)
        return True

    def _note_law(self, node_id: NodeId, vouched: Vouched) -> None:
        """Operators say where the node is, and whose law holds there, before it does itself."""
        if vouched.region is not None and vouched.jurisdiction is not None:
            self.laws.note(node_id, vouched.region, vouched.jurisdiction)

    def _count_sent(self, plan: RoutePlan | PrefillPlan, need: RouteNeed) -> None:
        """The node of `plan` has one more request."""
        sent = self._sent.setdefault((plan.node_id, need.model), Sent())
        sent.num_requests += 1
        sent.num_tokens += _count_own_tokens(plan)
        sent.num_held += plan.num_cached_tokens + plan.num_new_tokens
        self.health.note_sent(plan.node_id)

    def _describe(self, rings: Rings, now_s: float) -> FleetState:
        """What a choice at this moment rests on."""
        troubled = self.health.list_troubled(now_s)
        return FleetState(
            self._nodes,
            rings.answering,
            self._sent,
            troubled,
            rings.prefilling,
            rings.latencies_s,
            self._absent,
        )

    def _tell(self, node_id: NodeId) -> None:
        """There may be room at the node."""
        if self.on_news is not None:
            self.on_news(node_id)

    def _list_rings(self, model: ModelName) -> Rings:
        """Who has offered `model`, by region, nearest first."""
        rings = self._rings.get(model)
        if rings is None:
            rings = list_rings(model, self.snapshots, self.catalogue.measure_latency_s)
            if rings != NO_RINGS:  # names that clients make up are not remembered
                self._rings[model] = rings
        return rings

    def _hears(self, report: NodeReport) -> bool:
        """True for a node so near that the prompts it tells of are remembered."""
        if not report.prefixes:
            return False
        measure_latency_s = self.catalogue.measure_latency_s
        if self._earshot_s is None:
            self._earshot_s = measure_earshot_s(self.snapshots, measure_latency_s)
        return measure_latency_s(report.region) <= self._earshot_s

    def _find_offer(self, model: ModelName) -> tuple[ModelCard, int] | None:
        """The last node's card of `model`, and the longest context of any; None: nobody has it.

        Every request asks, of as many nodes as there are: the answer is kept while cards stay.
        """
        offer = self._offers.get(model)
        if offer is None:
            nodes = (*self._absent, *self.snapshots)
            cards = [node.cards[model] for node in nodes if model in node.cards]
            if not cards:
                return None  # names that clients make up are not remembered
            most = max(card.max_adapter_rank for card in cards)
            card = replace(cards[-1], max_adapter_rank=most)
            offer = card, max(card.context_window for card in cards)
            self._offers[model] = offer
        return offer

    def _put(self, snapshot: NodeSnapshot) -> None:
        before = self._nodes[snapshot.node_id]
        self._nodes[snapshot.node_id] = snapshot
        self._snapshots = None
        if before.cards != snapshot.cards:
            self._offers.clear()
        if (before.region, before.role, before.cards.keys()) != (
            snapshot.region,
            snapshot.role,
            snapshot.cards.keys(),
        ):
            self._rings.clear()
            self._earshot_s = None

    def _draw(self, count: int) -> int:
        """A number below `count`."""
        return self._sources.random_bits(_DRAW_BITS) % count


def _count_own_tokens(plan: RoutePlan | PrefillPlan) -> int:
    """Tokens of the prompt that the plan's node itself is to compute."""
    if isinstance(plan, RoutePlan) and plan.prefill is not None:
        return 0
    return plan.num_new_tokens
