"""Compares the production router with simple rules on a simulated fleet.

python -m benchmarks.routing                                    # 32 nodes of one region
python -m benchmarks.routing --nodes 8 --requests 16000 --utilisation 0.75 --capacity 1600000
python -m benchmarks.routing --nodes 8 --gateways 4             # requests come in at any of four
python -m benchmarks.routing --nodes 8 --gateways 4 --silent    # which do not hear of each other's
python -m benchmarks.routing --nodes 8 --gateways 4 --silent prompts # but of sessions: the header
python -m benchmarks.routing --nodes 8 --places 48               # more wait for a place
python -m benchmarks.routing --nodes 32 --fail-every 300         # nodes die and come back
python -m benchmarks.routing --nodes 2000 --sites 330           # sites near their users
python -m benchmarks.routing --nodes 2000 --sites 330 --jobs 8  # areas of the world side by side
python -m benchmarks.routing --nodes 2000 --sites 330 --central # and all nodes at one of them
python -m benchmarks.routing --nodes 8 --only "least tokens, one cache"  # how even it can be at all
python -m benchmarks.routing --record                           # appends the rows to results/

What the loads are that are compared: `benchmarks.routing.balance`.
"""

import argparse
import gc
import sys

from benchmarks.harness import (
    Figure,
    append_figures,
    describe_circumstances,
    print_figures,
    summarise,
)
from benchmarks.routing.areas import OURS, RULES, run_policy
from benchmarks.routing.production import Silence
from benchmarks.routing.simulated_node import CAPACITY, PREFILL_PER_S
from benchmarks.routing.simulation import Figures
from benchmarks.routing.traces import LEAD_S

_PACKAGES = ("msgspec", "xxhash")


def main() -> int:
    """Prints a table, and records it if asked."""
    asked = _parse()
    gc.disable()  # millions of objects to look for cycles in
    figures: list[Figure] = []
    for name in (*OURS, *RULES):
        if asked.only and name not in asked.only:
            continue
        came_of_it, decision_s = run_policy(name, asked)
        shown = name + (f", {asked.note}" if asked.note else "")
        figures += _describe(shown, asked.nodes, came_of_it)
        if decision_s:
            micros = [seconds * 1e6 for seconds in decision_s]
            figures.append(summarise("routing", shown, "decision", "us", asked.nodes, micros))
    print_figures(figures)
    if asked.record:
        append_figures("routing.csv", figures, describe_circumstances(_PACKAGES))
    return 0


def _describe(name: str, num_nodes: int, figures: Figures) -> list[Figure]:
    """The rows of one policy."""
    balance = figures.balance
    rows = (
        ("TTFT p50", "ms", [figures.find_ttft_s(0.5) * 1000]),
        ("TTFT p90", "ms", [figures.find_ttft_s(0.9) * 1000]),
        ("tokens held, max/mean each second", "ratio of nodes", balance.held),
        ("tokens held, max/mean of 30 s", "ratio of nodes", balance.carried),
        ("tokens computed, max/mean each 30 s", "ratio of nodes", balance.computed),
        ("tokens computed, max/mean", "ratio of nodes", balance.compare_totals()),
        ("cached input tokens", "share", [figures.hit_ratio]),
        ("cached, of one endless cache's", "share", [figures.share_of_best]),
        ("prefill in use", "share", [figures.prefill_use]),
        ("moved from nodes that died", "count", [figures.num_moved] * bool(figures.num_moved)),
        ("refused", "count", [figures.num_refused] * bool(figures.num_refused)),
    )
    return [
        summarise("routing", name, metric, unit, num_nodes, samples)
        for metric, unit, samples in rows
        if samples
    ]


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.routing")
    parser.add_argument("--nodes", type=int, default=32)
    parser.add_argument("--gateways", type=int, default=1, help="of a site")
    parser.add_argument(
        "--silent",
        nargs="?",
        default=Silence.NOTHING.value,
        const=Silence.ALL.value,
        choices=[each.value for each in Silence],
        help="what nodes do not tell of others' requests; without a word: all",
    )
    parser.add_argument("--sites", type=int, default=0, help="0: no distances")
    parser.add_argument("--central", action="store_true", help="all nodes at one site")
    parser.add_argument("--requests", type=int, default=8000, help="after the lead")
    parser.add_argument("--lead", type=float, default=LEAD_S, help="until it is busy, seconds")
    parser.add_argument("--tenants", type=int, default=40)
    parser.add_argument("--capacity", type=int, default=CAPACITY, help="of a node's cache, tokens")
    parser.add_argument("--prefill", type=float, default=PREFILL_PER_S, help="tokens per second")
    parser.add_argument("--places", type=int, default=0, help="of a node; 0: as many as come")
    parser.add_argument("--utilisation", type=float, default=0.8)
    parser.add_argument("--fail-every", type=float, default=0, help="a node, seconds; 0: never")
    parser.add_argument("--fail-for", type=float, default=30.0, help="until it is back, seconds")
    parser.add_argument("--jobs", type=int, default=1, help="areas at a time, each in a process")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--only",
        action="append",
        choices=[*OURS, *RULES],
        metavar="POLICY",
        help="may be repeated; any of: " + ", ".join([*OURS, *RULES]),
    )
    parser.add_argument("--note", default="", help="appended to the names of the rows")
    parser.add_argument("--record", action="store_true")
    asked = parser.parse_args()
    if asked.jobs < 1:
        parser.error(f"--jobs is {asked.jobs}; it has to be 1 at least")
    return asked


if __name__ == "__main__":
    sys.exit(main())
