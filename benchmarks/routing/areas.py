"""Runs one policy over the fleet and the trace that are asked for, area by area.

Areas have nothing to do with one another, so that they can be simulated side by side; what comes of
them does not depend on that.
"""

import argparse
import gc
from array import array
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context
from signal import SIG_DFL, SIGINT, signal

from rich.console import Console
from rich.progress import Progress

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
from benchmarks.routing.simulation import Clock, Figures, simulate
from benchmarks.routing.traces import LEAD_S, Load, SimRequest, draw_trace, measure_mean_new

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
OURS = {"hearth": False, "hearth, affinity": True}
"""Whether sessions can be told apart."""


def run_policy(name: str, asked: argparse.Namespace) -> tuple[Figures, "array[float]"]:
    """What comes of a policy, and what its decisions cost, in seconds."""
    shares = [area.share for area in split_areas(_create_scenario(asked))]
    largest_first = sorted(range(len(shares)), key=lambda number: -shares[number])
    if min(asked.jobs, len(shares)) == 1:
        parts = [_run_area(name, asked, number) for number in largest_first]
    else:
        parts = _run_beside(name, asked, largest_first)
    (sums, decision_s), *others = parts
    for figures, seconds in others:
        sums.add(figures)
        decision_s += seconds
    return sums, decision_s


def _run_beside(
    name: str, asked: argparse.Namespace, numbers: Sequence[int]
) -> list[tuple[Figures, "array[float]"]]:
    """What comes of the areas, `jobs` of them at a time, each in a process of its own: what it has
    remembered goes with it. A bar counts them.
    """
    pool = ProcessPoolExecutor(
        asked.jobs, get_context("spawn"), initializer=_begin, max_tasks_per_child=1
    )
    with pool, Progress(transient=True, console=Console(stderr=True)) as progress:
        runs = [pool.submit(_run_area, name, asked, number, is_shown=False) for number in numbers]
        try:
            return [run.result() for run in progress.track(runs, description=f"{name}, areas")]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # else all others are simulated first
            raise


def _begin() -> None:
    """Of an area's process: as in ours nothing is collected, and Ctrl-C ends it at once."""
    gc.disable()
    signal(SIGINT, SIG_DFL)


def _run_area(
    name: str, asked: argparse.Namespace, number: int, *, is_shown: bool = True
) -> tuple[Figures, "array[float]"]:
    """The same of one area. What another has remembered is forgotten first."""
    gc.collect()  # its callbacks are cycles, and it may have been gigabytes
    area = split_areas(_create_scenario(asked))[number]
    clock = Clock()
    policy = _create_policy(name, area, clock, asked)
    trace, end_s = _draw(asked, area, number)
    shown = _show_progress(name, trace, end_s) if is_shown else trace
    outages = Outages(asked.fail_every, asked.fail_for)
    turns = draw_turns(asked.seed + number * _SEEDS, len(area.nodes), outages, end_s)
    figures = simulate(area, shown, policy, clock, asked.lead, end_s, turns)
    return figures, policy.decision_s if isinstance(policy, Production) else array("d")


def _create_scenario(asked: argparse.Namespace) -> Scenario:
    """The fleet that is asked for, with cold caches."""
    machine = Machine(asked.capacity, asked.prefill, asked.places)
    if not asked.sites:
        return create_pool(asked.nodes, asked.gateways, machine)
    if asked.central:
        return create_centre(asked.seed, asked.nodes, asked.sites, asked.gateways, machine)
    return create_sites(asked.seed, asked.nodes, asked.sites, machine)


def _create_policy(
    name: str, scenario: Scenario, clock: Callable[[], float], asked: argparse.Namespace
) -> Policy:
    """A router or rule for the fleet."""
    if name in OURS:
        nodes, entries = scenario.nodes, scenario.entries
        return Production(nodes, entries, clock, asked.seed, OURS[name], Silence(asked.silent))
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
