"""Fleets to be simulated: one pool, sites near their users, or the same nodes at one central site.

Read next: `benchmarks.routing.geography`, `benchmarks.routing.production`.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.routing.geography import LAST_MILE_S, Site, draw_sites, find_centre
from benchmarks.routing.production import Entry
from benchmarks.routing.simulated_node import CAPACITY, PREFILL_PER_S, SimulatedNode
from contracts.ids import NodeId, RegionId

_HOME = RegionId("r000")


@dataclass(frozen=True, slots=True)
class Machine:
    """What a node is like. Units: tokens."""

    capacity: int = CAPACITY
    prefill_per_s: float = PREFILL_PER_S
    num_places: int = 0
    """Requests at the same time; 0: without a bound."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A fleet, its entries and its users."""

    nodes: Sequence[SimulatedNode]
    entries: Sequence[Entry]
    """By site of the users; a single one is everybody's."""
    pools: Sequence[Sequence[int]]
    """Places of the nodes that are at the same cost for each other's users, by site."""
    site_weights: Sequence[float] = (1.0,)
    sites: Sequence[Site] = ()
    """Where users are, if that is told."""
    home: int | None = None
    """The site at which all nodes are, if they are at one."""
    share: float = 1.0
    """Of all users, that come in here."""

    def measure_way_s(self, site: int, place: int) -> float:
        """From a user to the entry, on to the node, and back."""
        if not self.sites:
            return 0.0
        if self.home is not None:
            return LAST_MILE_S + self.sites[site].measure_latency_s(self.sites[self.home])
        return LAST_MILE_S + self.entries[site].latencies_s[self.nodes[place].region]


def split_areas(whole: Scenario) -> list[Scenario]:
    """The areas, in the order of their sites, of which no gateway knows a node of another: what
    comes of the whole comes of them one after the other, and only one is in memory.
    """
    if len(whole.entries) == 1:
        return [whole]
    areas = [site.area for site in whole.sites]
    begins = [place for place, area in enumerate(areas) if not place or areas[place - 1] != area]
    return [_cut(whole, slice(*bounds)) for bounds in pairwise((*begins, len(areas)))]


def _cut(whole: Scenario, sites: slice) -> Scenario:
    """The fleet at some neighbouring sites."""
    pools, weights = whole.pools[sites], whole.site_weights[sites]
    first = pools[0][0]
    return Scenario(
        whole.nodes[first : pools[-1][-1] + 1],
        whole.entries[sites],
        [[place - first for place in pool] for pool in pools],
        weights,
        whole.sites[sites],
        share=whole.share * sum(weights) / sum(whole.site_weights),
    )


def create_pool(num_nodes: int, num_gateways: int, machine: Machine) -> Scenario:
    """Nodes of one region behind gateways that share the requests at random."""
    nodes = [_create_node(place, _HOME, machine) for place in range(num_nodes)]
    entry = Entry(_HOME, {_HOME: 0.0}, num_gateways)
    return Scenario(nodes, [entry], [range(num_nodes)])


def create_sites(seed: int, num_nodes: int, num_sites: int, machine: Machine) -> Scenario:
    """Nodes near their users: each site has a few, and users by its nodes, give or take a seventh.

    A gateway knows the nodes of its area, which is as far as the law lets its requests go.
    """
    sites, counts, weights = _draw_demand(seed, num_nodes, num_sites)
    names = [RegionId(f"r{place:03}") for place in range(num_sites)]
    entries = [
        Entry(
            names[place],
            {
                names[other]: site.measure_latency_s(sites[other])
                for other in range(num_sites)
                if sites[other].area == site.area
            },
        )
        for place, site in enumerate(sites)
    ]
    nodes: list[SimulatedNode] = []
    pools: list[Sequence[int]] = []
    for place, count in enumerate(counts):
        pools.append(range(len(nodes), len(nodes) + count))
        nodes += [_create_node(len(nodes) + i, names[place], machine) for i in range(count)]
    return Scenario(nodes, entries, pools, weights, sites)


def create_centre(
    seed: int, num_nodes: int, num_sites: int, num_gateways: int, machine: Machine
) -> Scenario:
    """The same users, and as many nodes at the one site that is nearest to all."""
    sites, _, weights = _draw_demand(seed, num_nodes, num_sites)
    pool = create_pool(num_nodes, num_gateways, machine)
    return Scenario(pool.nodes, pool.entries, pool.pools, weights, sites, find_centre(sites))


def _draw_demand(
    seed: int, num_nodes: int, num_sites: int
) -> tuple[list[Site], list[int], list[float]]:
    """Sites, how many nodes each has, and how many users."""
    rng = random.Random(seed)
    sites = draw_sites(seed, num_sites)
    sizes = [rng.lognormvariate(0.0, 0.4) for _ in sites]
    total, before, shared = sum(sizes), 0.0, 0
    counts: list[int] = []
    for size in sizes:  # two each, and the rest by size
        before += size
        upto = round((num_nodes - 2 * num_sites) * before / total)
        counts.append(2 + upto - shared)
        shared = upto
    return sites, counts, [count * rng.uniform(6 / 7, 8 / 7) for count in counts]


def _create_node(place: int, region: RegionId, machine: Machine) -> SimulatedNode:
    node_id = NodeId(str(place))
    return SimulatedNode(
        node_id, region, machine.capacity, machine.prefill_per_s, machine.num_places
    )
