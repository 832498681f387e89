"""The nodes of a model by region, nearest first: those that answer, and those there for prompts.

And how near a node must be for its word on prompts to be heard. Pure. Read next:
`gateway.routing.choose_node`, `gateway.routing.prefill_choice`, `gateway.routing.locality`.
"""

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Final

from contracts.ids import ModelName, NodeId, RegionId
from contracts.node_roles import NodeRole
from gateway.routing.route_plan import NodeSnapshot, Ring

MAX_HEARD_NODES: Final = 128
"""Each of so many has room for 4,096 names in a gateway's memory (`prefix_index.MAX_HEARD`)."""


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
    for node in nodes:
        if node.region is not None and model in node.cards:
            key = (node.role is NodeRole.PREFILL, node.region)
            members.setdefault(key, []).append(node.node_id)

    def list_half(is_prefilling: bool) -> tuple[Ring, ...]:
        found = [
            Ring(measure_latency_s(region), region, tuple(node_ids))
            for (half, region), node_ids in members.items()
            if half is is_prefilling
        ]
        return tuple(sorted(found, key=lambda ring: (ring.latency_s, ring.region)))

    answering = list_half(False)
    latencies_s = {ring.region: ring.latency_s for ring in answering}
    num_nodes = sum(len(node_ids) for node_ids in members.values())
    return Rings(answering, list_half(True), latencies_s, num_nodes > 1)


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
