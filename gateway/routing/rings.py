"""The nodes of a model by region, nearest first: those that answer, and those there for prompts.

And what nearness is worth: how near a node must be for its word on prompts to be heard, and how
often it is to say how busy it is. Pure. Read next:
`gateway.routing.choose_node`, `gateway.routing.prefill_choice`, `gateway.routing.locality`.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Final

from contracts.ids import ModelName, NodeId, RegionId
from contracts.node_roles import NodeRole
from gateway.routing.prefix_index import Away
from gateway.routing.region_policy import rank_region
from gateway.routing.route_plan import NodeSnapshot, Ring, RouteNeed

MAX_HEARD_NODES: Final = 128
"""Each of so many has room for 4,096 names in a gateway's memory (`prefix_index.MAX_HEARD`)."""
REPORTS_PER_S: Final = 500
"""Of how busy nodes are, by all of them together; some 2 % of a core."""
MAX_NEAR_NODES: Final = 62
"""So many may report as often as there is need: half of all reports."""
_FARTHER_S: Final = 1000.0
"""Than every way there is."""
SHORTEST_REPORT_MS: Final = 250
_LONGEST_REPORT_MS: Final = 1000


@dataclass(frozen=True, slots=True)
class Rings:
    """Who has offered a model."""

    answering: tuple[Ring, ...] = ()
    """All but those of `prefilling`."""
    prefilling: tuple[Ring, ...] = ()
    """Nodes that compute prompts for others."""
    latencies_s: Mapping[RegionId, float] = field(default_factory=dict[RegionId, float])
    """To the regions of `answering`."""
    has_choice: bool = False
    """True where there are two nodes or more."""

    @property
    def regions(self) -> Set[RegionId]:
        """Where any of them is."""
        return {ring.region for ring in (*self.answering, *self.prefilling)}


NO_RINGS: Final = Rings()


def list_rings(
    model: ModelName,
    nodes: Iterable[NodeSnapshot],
    measure_latency_s: Callable[[RegionId], float],
) -> Rings:
    """Who among `nodes` has offered `model`; nodes of no known region are left out."""
    members: dict[tuple[bool, RegionId], list[NodeId]] = {}
    awake: dict[tuple[bool, RegionId], list[NodeId]] = {}
    for node in nodes:
        if node.region is not None and model in node.cards:
            key = (node.role is NodeRole.PREFILL, node.region)
            members.setdefault(key, []).append(node.node_id)
            load = node.loads.get(model)
            if load is not None and load.is_ready:
                awake.setdefault(key, []).append(node.node_id)

    def list_half(is_prefilling: bool) -> tuple[Ring, ...]:
        found = [
            Ring(measure_latency_s(key[1]), key[1], tuple(node_ids), tuple(awake.get(key, ())))
            for key, node_ids in members.items()
            if key[0] is is_prefilling
        ]
        return tuple(sorted(found, key=lambda ring: (ring.latency_s, ring.region)))

    answering = list_half(False)
    latencies_s = {ring.region: ring.latency_s for ring in answering}
    num_nodes = sum(len(node_ids) for node_ids in members.values())
    return Rings(answering, list_half(True), latencies_s, num_nodes > 1)


def create_compass(
    need: RouteNeed,
    latencies_s: Mapping[RegionId, float],
    nodes: Mapping[NodeId, NodeSnapshot],
    *,
    is_for_prompts: bool = False,
) -> Away:
    """How far a node is that is there, of that half, and where the request may go: every place that
    it prefers is nearer than all others.
    """
    allowed = need.allowed_regions

    def measure_away_s(node_id: NodeId) -> float | None:
        node = nodes.get(node_id)
        if node is None or not node.is_connected or node.region is None:
            return None
        if (node.role is NodeRole.PREFILL) is not is_for_prompts:
            return None
        if allowed is not None and node.region not in allowed:
            return None
        latency_s = latencies_s.get(node.region)
        if latency_s is None or not need.preferred:
            return latency_s
        return latency_s + _FARTHER_S * rank_region(need, node.region)

    return measure_away_s


def find_first_ring(need: RouteNeed, rings: Sequence[Ring]) -> Ring | None:
    """Where a request would go if all had room; None where it may go to none of `rings`."""
    lawful = (ring for ring in rings if need.may_use(ring.region))
    if not need.preferred:
        return next(lawful, None)
    return min(lawful, key=lambda ring: rank_region(need, ring.region), default=None)


def describe_demand(
    need: RouteNeed, rings: Rings
) -> tuple[tuple[RegionId, ...] | None, tuple[RegionId, ...]]:
    """The regions of `rings` that may compute the request, None for any, and of them those where it
    looks for room before all others: none where it has no preference among them.
    """
    allowed = need.allowed_regions
    # Clients may name regions that are none: those must make no difference.
    lawful = {region for region in rings.regions if need.may_use(region)}
    found = (group & lawful for group in need.preferred)
    first = next((group for group in found if group), lawful)
    preferred = () if first == lawful else tuple(sorted(first))
    return None if allowed is None else tuple(sorted(lawful)), preferred


def measure_earshot_s(
    nodes: Iterable[NodeSnapshot],
    measure_latency_s: Callable[[RegionId], float],
    max_nodes: int = MAX_HEARD_NODES,
) -> float:
    """How far away a node may be to be heard, in seconds: no farther than the nearest so many.

    Those of one region are all equally near, and nobody is too far while there are few.
    """
    regions = [node.region for node in nodes if node.region is not None]
    if len(regions) <= max_nodes:
        return float("inf")
    return sorted(measure_latency_s(region) for region in regions)[max_nodes - 1]


def choose_report_ms(
    node_id: NodeId,
    regions: Mapping[NodeId, RegionId | None],
    measure_latency_s: Callable[[RegionId | None], float],
) -> int:
    """How often a node is to say how busy it is, in milliseconds; `regions` are those of all nodes.

    A gateway sends most of its requests to the nodes around it, and between two reports it knows
    nothing of what others have sent there. So where not all can report as often as there is need,
    the nearest do; of those that are equally near, as the nodes of one region, all or none.
    """
    away_s = sorted(map(measure_latency_s, regions.values()))
    num_near = num_nodes = len(away_s)
    if num_nodes * 1000 > REPORTS_PER_S * SHORTEST_REPORT_MS:
        num_near = bisect_left(away_s, away_s[MAX_NEAR_NODES])
    if num_near == num_nodes or measure_latency_s(regions[node_id]) < away_s[num_near]:
        return SHORTEST_REPORT_MS
    num_left = REPORTS_PER_S - num_near * 1000 // SHORTEST_REPORT_MS
    even_ms = (num_nodes - num_near) * 1000 // num_left
    return min(max(even_ms, SHORTEST_REPORT_MS), _LONGEST_REPORT_MS)
