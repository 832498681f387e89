"""Compares the production router with simple rules on a simulated fleet.

python -m benchmarks.routing                                    # 32 nodes of one region
python -m benchmarks.routing --nodes 2000 --regions 330 --requests 20000
python -m benchmarks.routing --nodes 8 --requests 16000 --utilisation 0.75 --capacity 1600000
python -m benchmarks.routing --record                           # appends the rows to results/
"""

import argparse
import sys
from collections.abc import Callable

from benchmarks.harness import (
    Figure,
    append_figures,
    describe_circumstances,
    print_figures,
    summarise,
)
from benchmarks.routing.policies import (
    LeastRequests,
    Policy,
    PowerOfTwo,
    PrefixOnly,
    Production,
    RoundRobin,
)
from benchmarks.routing.simulated_node import CAPACITY, PREFILL_PER_S, SimulatedNode
from benchmarks.routing.simulation import Clock, Figures, simulate
from benchmarks.routing.traces import SimRequest, draw_trace, list_best_hits
from contracts.ids import NodeId, RegionId

_PACKAGES = ("msgspec", "xxhash")
OURS = "hearth"


def main() -> int:
    """Prints a table, and records it if asked."""
    asked = _parse()
    trace = _draw(asked)
    policies: dict[str, Callable[[list[SimulatedNode], Clock], Policy]] = {
        OURS: lambda nodes, clock: Production(nodes, clock, asked.seed, affinity=False),
        "hearth, affinity": lambda nodes, clock: Production(
            nodes, clock, asked.seed, affinity=True
        ),
        "round robin": lambda nodes, _: RoundRobin(nodes, asked.seed),
        "least requests": lambda nodes, _: LeastRequests(nodes, asked.seed),
        "power of two": lambda nodes, _: PowerOfTwo(nodes, asked.seed),
        "prefix only": lambda nodes, _: PrefixOnly(nodes, asked.seed),
    }
    figures: list[Figure] = []
    for name, create in policies.items():
        if asked.only and name not in asked.only:
            continue
        nodes = create_nodes(asked.nodes, asked.regions, asked.capacity)
        clock = Clock()
        policy = create(nodes, clock)
        figures += _describe(name, asked.nodes, simulate(nodes, trace, policy, clock))
        if isinstance(policy, Production):
            micros = [seconds * 1e6 for seconds in policy.decision_s]
            figures.append(summarise("routing", name, "decision", "us", asked.nodes, micros))
    circumstances = describe_circumstances(_PACKAGES)
    print_figures(figures)
    if asked.record:
        append_figures("routing.csv", figures, circumstances)
    return 0


def create_nodes(num_nodes: int, num_regions: int, capacity: int = CAPACITY) -> list[SimulatedNode]:
    """Nodes, spread over the regions in turn."""
    return [
        SimulatedNode(NodeId(str(place)), RegionId(f"r{place % num_regions:03}"), capacity)
        for place in range(num_nodes)
    ]


def _draw(asked: argparse.Namespace) -> list[SimRequest]:
    """The trace: as many requests a second as keep prefill this busy, all cached that can be."""
    sample = draw_trace(asked.seed, 10_000, 50.0, asked.tenants)
    hits = list_best_hits(sample)
    num_new = sum(one.num_prompt - hit for one, hit in zip(sample, hits, strict=True))
    mean_new = num_new / len(sample)
    rate = asked.utilisation * asked.nodes * PREFILL_PER_S / mean_new
    return draw_trace(asked.seed, asked.requests, rate, asked.tenants)


def _describe(name: str, num_nodes: int, figures: Figures) -> list[Figure]:
    """The rows of one policy."""
    rows = (
        ("TTFT p50", "ms", figures.find_ttft_s(0.5) * 1000),
        ("TTFT p90", "ms", figures.find_ttft_s(0.9) * 1000),
        ("token load max/mean", "ratio of nodes", figures.mean_balance),
        ("work max/mean", "ratio of nodes", figures.work_balance),
        ("cached input tokens", "share", figures.hit_ratio),
        ("cached, of one endless cache's", "share", figures.share_of_best),
        ("prefill in use", "share", figures.prefill_use),
    )
    return [
        summarise("routing", name, metric, unit, num_nodes, [value]) for metric, unit, value in rows
    ]


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.routing")
    parser.add_argument("--nodes", type=int, default=32)
    parser.add_argument("--regions", type=int, default=1)
    parser.add_argument("--requests", type=int, default=8000)
    parser.add_argument("--tenants", type=int, default=40)
    parser.add_argument("--capacity", type=int, default=CAPACITY, help="of a node's cache, tokens")
    parser.add_argument("--utilisation", type=float, default=0.8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", help="one policy by name; may be repeated")
    parser.add_argument("--record", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
