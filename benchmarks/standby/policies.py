"""Who leaves when room is needed: two rules everybody knows, one that knows the future, and the
production planner.

All of them wake models on demand; only the planner also moves them ahead of it. The rules know
every use of every model since the beginning, whichever tier it is in.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import msgspec

from benchmarks.standby.simulated_node import SimulatedNode
from benchmarks.standby.traces import SimArrival
from contracts.fleet_view import FleetView, NodeView
from contracts.ids import BootId, GatewayId, ModelName, RegionId
from contracts.placement import Tier
from gateway.routing.demand import DemandRecorder
from hot_standby.demand import DemandBook
from hot_standby.fleet_state import merge_views
from hot_standby.placement_planner import plan_placement
from hot_standby.settings import StandbySettings
from hot_standby.tiers import MoveSpeeds

EPOCH_S = 1_800_000_000.0
"""When simulations begin."""
Latency = Callable[[RegionId, RegionId], float]


class Ranked:
    """Leaves by one rank in every tier."""

    def rank(self, node: SimulatedNode, name: ModelName) -> tuple[float, str]:
        """Whose is least leaves first."""
        raise NotImplementedError

    def choose(self, node: SimulatedNode, candidates: list[ModelName]) -> ModelName:
        """The first of these to leave."""
        return min(candidates, key=lambda name: self.rank(node, name))

    def skips_host(self, node: SimulatedNode, leaving: ModelName, others: list[ModelName]) -> bool:
        """True when it would be the first to leave the host again."""
        return self.choose(node, [*others, leaving]) == leaving


class LeastRecent(Ranked):
    """LRU: whoever was used longest ago."""

    def rank(self, node: SimulatedNode, name: ModelName) -> tuple[float, str]:
        """By its last use."""
        return node.states[name].last_used_s, name


class LeastFrequent(Ranked):
    """LFU: whoever was used least often."""

    def rank(self, node: SimulatedNode, name: ModelName) -> tuple[float, str]:
        """By its uses since the beginning."""
        return node.states[name].num_uses, name


class Clairvoyant(Ranked):
    """Whoever is asked for last of all: nobody can know it, and nobody who only makes room when
    room is needed does much better.
    """

    def __init__(self, trace: Iterable[SimArrival], clock: Callable[[], float]) -> None:
        """`trace` is all that will come."""
        self._clock = clock
        self._arrivals: defaultdict[ModelName, list[float]] = defaultdict(list)
        for arrival in trace:
            self._arrivals[arrival.model].append(arrival.at_s)

    def rank(self, node: SimulatedNode, name: ModelName) -> tuple[float, str]:
        """By its next use."""
        arrivals = self._arrivals[name]
        place = bisect_right(arrivals, self._clock())
        return -(arrivals[place] if place < len(arrivals) else float("inf")), name


class Planned(Ranked):
    """The order of the last plan; whoever it does not name goes first."""

    def rank(self, node: SimulatedNode, name: ModelName) -> tuple[float, str]:
        """By its place in the order."""
        return (node.order.index(name) if name in node.order else -1), name

    def skips_host(self, node: SimulatedNode, leaving: ModelName, others: list[ModelName]) -> bool:
        """True when the plan wants it no nearer."""
        return node.targets.get(leaving) is Tier.DISK


class PlanningController:
    """What the controller does every period, with everything that it does it with."""

    def __init__(
        self, nodes: Sequence[SimulatedNode], latency: Latency, settings: StandbySettings
    ) -> None:
        """Knows nothing yet."""
        self._nodes = nodes
        self._latency = latency
        self._settings = settings
        self._recorders = {node.region: DemandRecorder() for node in nodes}
        self._book = DemandBook(settings.demand)
        self._number = 0

    def note(self, arrival: SimArrival) -> None:
        """A gateway sees a request."""
        unix_ms = round((EPOCH_S + arrival.at_s) * 1000)
        self._recorders[arrival.entry].note(arrival.model, arrival.allowed, unix_ms)

    def plan(self, now_s: float) -> None:
        """Reads the fleet, plans, and gives every node its plan."""
        views = [self._view(region, now_s) for region in self._recorders]
        self._book.advance(EPOCH_S + now_s)
        for view in views:
            self._book.absorb(view)
        state = merge_views(views, 10.0, MoveSpeeds(), {})
        demands = self._book.foretell(EPOCH_S + now_s)
        self._number += 1
        plans = plan_placement(
            state, demands, self._settings.planner, EPOCH_S + now_s, self._number
        )
        by_id = {plan.node_id: plan for plan in plans}
        for node in self._nodes:
            plan = by_id[node.node_id]
            node.targets = {target.name: target.tier for target in plan.targets}
            node.order = plan.eviction_order
            node.act(now_s)

    def _view(self, region: RegionId, now_s: float) -> FleetView:
        """What the gateway of a region tells."""
        nodes = [node.to_view(now_s) for node in self._nodes]
        return FleetView(
            gateway_id=GatewayId(f"gateway-{region}"),
            boot_id=BootId("boot"),
            region=region,
            unix_ms=round((EPOCH_S + now_s) * 1000),
            nodes=tuple(
                _replace_latency(node, self._latency(region, node.region or region))
                for node in nodes
            ),
            demand=self._recorders[region].list_samples(),
            rules=(),
        )


def _replace_latency(node: NodeView, latency_s: float) -> NodeView:
    """The node as seen from afar."""
    return msgspec.structs.replace(node, latency_s=latency_s)
