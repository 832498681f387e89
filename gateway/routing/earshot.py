"""Whose prompts a gateway remembers, of those that nodes tell of: the nearest ones'.

Pure. Owns the bound; must not know what is told. Read next: `gateway.routing.locality` (who
remembers), `gateway.routing.prefix_index` (how much).
"""

from collections.abc import Callable, Iterable
from typing import Final

from contracts.ids import RegionId
from gateway.routing.route_plan import NodeSnapshot

MAX_HEARD_NODES: Final = 128
"""Each of so many has room for 4,096 names in a gateway's memory (`prefix_index.MAX_HEARD`)."""


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
