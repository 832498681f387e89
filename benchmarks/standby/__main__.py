"""Compares the planner of hot standby with LRU, LFU and a clairvoyant on simulated nodes.

What is compared is the mean wait of a request for weights: 0 where its model is on the device, else
the time until somebody has left and the model has come. All policies wake on demand and play the
same traces. One knows the future and lets whoever is asked for last leave: what can be had by
choosing well who makes room. The others know nothing of what comes; the planner is the production
code, fed once a period with what gateways would tell it. The first part of each trace is not
counted.

scenarios:
  host holds all   13 models, 3 fit on the device, all others in the host's memory
  small host       the same, and 3 of them only on disk
  unlike sizes     as the first, with models up to three times as large as each other
  three regions    as the first on 2 nodes in each of 3 regions, which have other favourites; a
                   quarter of the bursts may not leave its region
  as the node played
                   `bench_node`'s trace: ten minutes, a burst every 6 s, half of the models in the
                   host's memory, which come as fast as they did on the real node
  the node, calmer
                   the same node with a burst every 10 s and a host that holds all

examples:
  python -m benchmarks.standby                       # every scenario, four seeds
  python -m benchmarks.standby --only "small host" --seeds 8
  python -m benchmarks.standby --pause 15            # twice the traffic, where it is not the node's
  python -m benchmarks.standby --record              # appends the rows to results/standby.csv
"""

import argparse
import statistics
import sys
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec
from rich.console import Console
from rich.progress import Progress

from benchmarks.harness import (
    Figure,
    append_figures,
    compute_ratios,
    describe_circumstances,
    print_figures,
    summarise,
)
from benchmarks.standby.simulated_node import NodeShape, Tally
from benchmarks.standby.simulation import OURS, POLICIES, FleetShape, simulate
from benchmarks.standby.traces import GIB, NODE_SHAPE, TraceShape, draw_models, draw_trace
from contracts.ids import RegionId
from hot_standby.settings import StandbySettings
from hot_standby.tiers import MoveSpeeds

NUM_MODELS: Final = 13
_WARM_UP: Final = 0.2
_NODE_BYTES: Final = 209_000_000
_NODE_SPEEDS: Final = MoveSpeeds(
    host_per_s=_NODE_BYTES / 0.15, disk_per_s=_NODE_BYTES / 0.2, disk_start_s=0.5
)
"""From `results/standby_node.csv`: 0.32 s from the host, of which half is another's leaving, and
0.86 s from the disk to the first token."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Where a trace is played. Sizes in models of the mean size."""

    num_on_device: float = 3.3
    num_in_host: float = 13.0
    spread: float = 1.0
    num_regions: int = 1
    nodes_per_region: int = 1
    shape: TraceShape | None = None
    """What is asked; None leaves it to the options."""
    weights_bytes: int = 6 * GIB
    speeds: MoveSpeeds = field(default_factory=MoveSpeeds)


SCENARIOS: Final = {
    "host holds all": Scenario(),
    "small host": Scenario(num_in_host=7.0),
    "unlike sizes": Scenario(spread=3.0),
    "three regions": Scenario(num_regions=3, nodes_per_region=2),
    "as the node played": Scenario(
        num_in_host=6.6, shape=NODE_SHAPE, weights_bytes=_NODE_BYTES, speeds=_NODE_SPEEDS
    ),
    "the node, calmer": Scenario(
        shape=replace(NODE_SHAPE, mean_pause_s=10.0),
        weights_bytes=_NODE_BYTES,
        speeds=_NODE_SPEEDS,
    ),
}


def main() -> int:
    """Prints a table, and records it if asked."""
    asked = _parse()
    settings = msgspec.structs.replace(StandbySettings(), period_s=asked.period)
    asked_shape = TraceShape(duration_s=asked.minutes * 60, mean_pause_s=asked.pause)
    names = [asked.only] if asked.only else list(SCENARIOS)
    figures: list[Figure] = []
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("simulating", total=len(names) * asked.seeds * len(POLICIES))
        for name in names:
            scenario = SCENARIOS[name]
            tallies: dict[str, list[Tally]] = {policy: [] for policy in POLICIES}
            for seed in range(1, asked.seeds + 1):
                for policy in POLICIES:
                    bar.update(task, description=f"{name}, {policy}, seed {seed}")
                    tallies[policy].append(play(policy, scenario, seed, asked_shape, settings))
                    bar.advance(task)
            minutes = (scenario.shape or asked_shape).duration_s / 60
            figures += _describe(name, tallies, minutes * (1 - _WARM_UP))
    waits = [figure for figure in figures if figure.metric == "mean wait"]
    figures += compute_ratios(waits, OURS)
    print_figures(figures)
    if asked.record:
        append_figures("standby.csv", figures, describe_circumstances(("msgspec",)))
    return 0


def play(
    policy: str,
    scenario: Scenario,
    seed: int,
    asked: TraceShape,
    settings: StandbySettings,
) -> Tally:
    """One trace under one policy; `asked` counts where the scenario has no shape of its own."""
    models = draw_models(seed, NUM_MODELS, scenario.spread, scenario.weights_bytes)
    mean_bytes = sum(model.weights_bytes for model in models) / len(models)
    regions = tuple(RegionId(f"r{place}") for place in range(scenario.num_regions))
    shape = scenario.shape or asked
    num_nodes = scenario.num_regions * scenario.nodes_per_region
    shape = replace(shape, mean_pause_s=shape.mean_pause_s / num_nodes)
    node = NodeShape(
        int(scenario.num_on_device * mean_bytes),
        int(scenario.num_in_host * mean_bytes),
        scenario.speeds,
    )
    fleet = FleetShape(regions, scenario.nodes_per_region, node)
    trace = draw_trace(seed, models, list(regions), shape)
    return simulate(policy, trace, models, fleet, settings, shape.duration_s * _WARM_UP)


def _describe(name: str, tallies: dict[str, list[Tally]], minutes: float) -> list[Figure]:
    """The rows of one scenario: each sample is one seed."""
    rows = (
        ("mean wait", "s", lambda tally: statistics.fmean(tally.waits_s)),
        ("wait p90", "s", lambda tally: statistics.quantiles(tally.waits_s, n=10)[-1]),
        ("waiting", "share", lambda t: sum(wait > 0 for wait in t.waits_s) / len(t.waits_s)),
        ("wakes", "1/min", lambda tally: tally.num_wakes / minutes),
        ("wakes ahead of demand", "1/min", lambda tally: tally.num_early / minutes),
    )
    return [
        summarise(name, policy, metric, unit, NUM_MODELS, [measure(tally) for tally in of_policy])
        for metric, unit, measure in rows
        for policy, of_policy in tallies.items()
    ]


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        prog="python -m benchmarks.standby",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", choices=list(SCENARIOS), help="one scenario instead of all")
    parser.add_argument("--seeds", type=int, default=4, help="traces per scenario (4)")
    parser.add_argument("--minutes", type=float, default=90.0, help="of simulated time (90)")
    parser.add_argument(
        "--pause", type=float, default=30.0, help="seconds between bursts, per node (30)"
    )
    parser.add_argument("--period", type=float, default=2.0, help="seconds between two plans (2)")
    parser.add_argument("--record", action="store_true", help="append to results/standby.csv")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
