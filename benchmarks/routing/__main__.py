"""Compares the production router with simple rules on a simulated fleet.

python -m benchmarks.routing                                    # 32 nodes of one region
python -m benchmarks.routing --nodes 8 --requests 16000 --utilisation 0.75 --capacity 1600000
python -m benchmarks.routing --nodes 8 --gateways 4             # requests come in at any of four
python -m benchmarks.routing --nodes 8 --gateways 4 --silent    # which do not hear of each other's
python -m benchmarks.routing --nodes 8 --gateways 4 --silent prompts # but of sessions: the header
python -m benchmarks.routing --nodes 32 --fail-every 300         # nodes die and come back
python -m benchmarks.routing --nodes 2000 --sites 330           # sites near their users
python -m benchmarks.routing --nodes 2000 --sites 330 --central # and all nodes at one of them
python -m benchmarks.routing --nodes 8 --only "least tokens, one cache"  # how even it can be at all
python -m benchmarks.routing --record                           # appends the rows to results/

What the loads are that are compared: `benchmarks.routing.balance`.
"""

import argparse
import gc
import sys
from array import array
from collections import deque
from collections.abc import Callable, Generator, Iterator
from itertools import islice

from rich.console import Console
from rich.progress import Progress

from benchmarks.harness import (
    Figure,
    append_figures,
    describe_circumstances,
    print_figures,
    summarise,
)
from benchmarks.routing.outages import Outages, draw_turns
from benchmarks.routing.policies import (
    BySite,
    LeastRequests,
    LeastTokens,
    OneCache,
    Policy,
    PowerOfTwo,
    PrefixOnly,
    RoundRobin,
)
from benchmarks.routing.production import Production, Silence
from benchmarks.routing.scenarios import (
    Machine,
    Scenario,
    create_centre,
    create_pool,
    create_sites,
    split_areas,
)
from benchmarks.routing.simulated_node import CAPACITY, PREFILL_PER_S
from benchmarks.routing.simulation import Clock, Figures, simulate
from benchmarks.routing.traces import LEAD_S, Load, SimRequest, draw_trace, measure_mean_new

_PACKAGES = ("msgspec", "xxhash")
_SAMPLE = 10_000
_SHOWN_EACH = 100
"""Requests."""
_SEEDS = 1_000_003
"""From an area's seed to the next one's."""
RULES = {
    "round robin": RoundRobin,
    "least requests": LeastRequests,
    "power of two": PowerOfTwo,
    "prefix only": PrefixOnly,
    "least tokens": LeastTokens,
    "least tokens, one cache": OneCache,
}
_OURS = {"hearth": False, "hearth, affinity": True}
"""Whether sessions can be told apart."""


def main() -> int:
    """Prints a table, and records it if asked."""
    asked = _parse()
    gc.disable()  # millions of objects to look for cycles in
    figures: list[Figure] = []
    for name in (*_OURS, *RULES):
        if asked.only and name not in asked.only:
            continue
        came_of_it, decision_s = _run(name, asked)
        shown = name + (f", {asked.note}" if asked.note else "")
        figures += _describe(shown, asked.nodes, came_of_it)
        if decision_s:
            micros = [seconds * 1e6 for seconds in decision_s]
            figures.append(summarise("routing", shown, "decision", "us", asked.nodes, micros))
    print_figures(figures)
    if asked.record:
        append_figures("routing.csv", figures, describe_circumstances(_PACKAGES))
    return 0


def _run(name: str, asked: argparse.Namespace) -> tuple[Figures, "array[float]"]:
    """What comes of a policy, and what its decisions cost, in seconds."""
    waiting = deque(enumerate(split_areas(_create_scenario(asked))))
    sums: Figures | None = None
    decision_s = array("d")
    while waiting:  # what an area has remembered goes with the area
        number, area = waiting.popleft()
        gc.collect()  # what was before: its callbacks are cycles, and it may have been gigabytes
        clock = Clock()
        policy = _create_policy(name, area, clock, asked)
        trace, end_s = _draw(asked, area, number)
        shown = _show_progress(name, trace, end_s)
        outages = Outages(asked.fail_every, asked.fail_for)
        turns = draw_turns(asked.seed + number * _SEEDS, len(area.nodes), outages, end_s)
        figures = simulate(area, shown, policy, clock, asked.lead, end_s, turns)
        if isinstance(policy, Production):
            decision_s += policy.decision_s
        if sums is None:
            sums = figures
        else:
            sums.add(figures)
    assert sums is not None, "a fleet has at least one area"
    return sums, decision_s


def _create_scenario(asked: argparse.Namespace) -> Scenario:
    """The fleet that is asked for, with cold caches."""
    machine = Machine(asked.capacity, asked.prefill)
    if not asked.sites:
        return create_pool(asked.nodes, asked.gateways, machine)
    if asked.central:
        return create_centre(asked.seed, asked.nodes, asked.sites, asked.gateways, machine)
    return create_sites(asked.seed, asked.nodes, asked.sites, machine)


def _create_policy(
    name: str, scenario: Scenario, clock: Callable[[], float], asked: argparse.Namespace
) -> Policy:
    """A router or rule for the fleet."""
    if name in _OURS:
        nodes, entries = scenario.nodes, scenario.entries
        return Production(nodes, entries, clock, asked.seed, _OURS[name], Silence(asked.silent))
    rule = RULES[name]
    if rule.needs_one_cache:
        for node in scenario.nodes[1:]:
            node.share_cache(scenario.nodes[0])
    return BySite(rule, scenario.pools)


def _draw(
    asked: argparse.Namespace, area: Scenario, number: int
) -> tuple[Iterator[SimRequest], float]:
    """The trace of an area: as many requests a second as keep prefill this busy, all cached that
    can be; and when it ends.
    """
    sample = draw_trace(asked.seed, Load(50.0, _SAMPLE / 50.0 + LEAD_S, asked.tenants))
    mean_new = measure_mean_new(islice(sample, _SAMPLE))
    rate = asked.utilisation * asked.nodes * asked.prefill / mean_new
    end_s = asked.lead + asked.requests / rate
    load = Load(rate * area.share, end_s, asked.tenants, area.site_weights)
    return draw_trace(asked.seed + number * _SEEDS, load), end_s


def _show_progress(name: str, trace: Iterator[SimRequest], end_s: float) -> Generator[SimRequest]:
    """The trace, with a bar of the simulated time."""
    with Progress(transient=True, console=Console(stderr=True)) as progress:
        task = progress.add_task(name, total=end_s)
        for number, request in enumerate(trace):
            if not number % _SHOWN_EACH:
                progress.update(task, completed=request.arrival_s)
            yield request


def _describe(name: str, num_nodes: int, figures: Figures) -> list[Figure]:
    """The rows of one policy."""
    balance = figures.balance
    rows = (
        ("TTFT p50", "ms", [figures.find_ttft_s(0.5) * 1000]),
        ("TTFT p90", "ms", [figures.find_ttft_s(0.9) * 1000]),
        ("tokens held, max/mean each second", "ratio of nodes", balance.held),
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
    parser.add_argument("--utilisation", type=float, default=0.8)
    parser.add_argument("--fail-every", type=float, default=0, help="a node, seconds; 0: never")
    parser.add_argument("--fail-for", type=float, default=30.0, help="until it is back, seconds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", help="one policy by name; may be repeated")
    parser.add_argument("--note", default="", help="appended to the names of the rows")
    parser.add_argument("--record", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
