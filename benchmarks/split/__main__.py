"""What answers feel of long prompts: computed beside them, or on nodes of their own.

python -m benchmarks.split                       # four H100-like cards, a model of 8 billion
python -m benchmarks.split --documents 0.5       # other traffic
python -m benchmarks.split --record              # appends the rows to results/

`benchmarks.split.turns` has traffic that turns, and roles that follow it.

The production scheduler and router run; only the steps and the network are simulated.
"""

import argparse
import sys

from rich.console import Console
from rich.table import Table

from benchmarks.harness import (
    Figure,
    append_figures,
    describe_circumstances,
    summarise,
)
from benchmarks.split.card import H100_8B
from benchmarks.split.hand_over import TimedSource
from benchmarks.split.simulated_core import SimulatedCore
from benchmarks.split.simulation import Figures, Simulation
from benchmarks.split.traces import Mix, draw_trace
from contracts.ids import NodeId
from contracts.node_roles import NodeRole
from gpu_pool.engine.settings import SchedulerSettings

_PACKAGES = ("msgspec",)
MOVED_S = (0.003, H100_8B.kv_bytes / 40e9)
"""A hand-over over 400 Gbit/s of network, as far as that is reached."""
_MIXED = "m" * 4
_PAUSE_MS = SchedulerSettings().max_pause_ms


def main() -> int:
    """Prints a table, and records it if asked."""
    asked = _parse()
    mix = Mix(asked.chats, asked.documents, asked.seconds, asked.seconds / 5)
    trace = draw_trace(mix, asked.seed)
    fleets = {
        "together, whole steps": (_MIXED, 0),
        "together": (_MIXED, _PAUSE_MS),
        "1 for prompts, 3 for answers": ("pddd", _PAUSE_MS),
        "2 for prompts, 2 for answers": ("ppdd", _PAUSE_MS),
    }
    figures: list[Figure] = []
    for name, (roles, max_pause_ms) in fleets.items():
        felt = create_simulation(roles, max_pause_ms, mix.warm_s).run(trace)
        figures += describe_fleet(name, len(trace), felt)
    print_figures(figures)
    if asked.record:
        append_figures("split.csv", figures, describe_circumstances(_PACKAGES))
    return 0


def create_simulation(roles: str, max_pause_ms: int, warm_s: float) -> Simulation:
    """A fleet with one card for each letter of `roles`."""
    kinds = {"m": NodeRole.MIXED, "p": NodeRole.PREFILL, "d": NodeRole.DECODE}
    sources = [TimedSource() for _ in roles]
    cores: list[SimulatedCore] = []
    for place, letter in enumerate(roles):
        settings = SchedulerSettings(max_pause_ms=max_pause_ms, max_running=256)
        node_id = NodeId(f"{letter}{place}")
        cores.append(SimulatedCore(node_id, kinds[letter], H100_8B, settings, sources[place]))
    return Simulation(cores, sources, MOVED_S, warm_s)


def describe_fleet(name: str, num_requests: int, felt: Figures) -> list[Figure]:
    """The rows of one fleet."""
    quantiles = {
        "gap p50": (felt.gaps_s, 0.5),
        "gap p90": (felt.gaps_s, 0.9),
        "gap p99": (felt.gaps_s, 0.99),
        "longest gap of an answer p50": (felt.worst_gaps_s, 0.5),
        "TTFT p50": (felt.ttft_s, 0.5),
        "TTFT p90": (felt.ttft_s, 0.9),
    }
    rows = [
        (metric, "ms", _quantile(samples, share) * 1000)
        for metric, (samples, share) in quantiles.items()
    ]
    rows.append(("tokens of answers", "per s", felt.num_tokens / felt.end_s))
    rows.append(("prompts computed elsewhere", "share", felt.num_split / num_requests))
    rows.append(("refused", "requests", float(felt.num_refused)))
    return [
        summarise("split", name, metric, unit, num_requests, [value])
        for metric, unit, value in rows
    ]


def print_figures(figures: list[Figure]) -> None:
    """One row for each metric, one column for each fleet."""
    fleets = list(dict.fromkeys(figure.provider for figure in figures))
    by_key = {(figure.metric, figure.provider): figure for figure in figures}
    table = Table("", *fleets, "unit")
    for metric, unit in dict.fromkeys((figure.metric, figure.unit) for figure in figures):
        values = (f"{by_key[metric, fleet].p50:.4g}" for fleet in fleets)
        table.add_row(metric, *values, unit)
    Console(width=140).print(table)


def _quantile(samples: list[float], share: float) -> float:
    return sorted(samples)[int(share * (len(samples) - 1))]


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.split")
    parser.add_argument("--chats", type=float, default=40.0, help="requests a second")
    parser.add_argument("--documents", type=float, default=1.5, help="requests a second")
    parser.add_argument("--seconds", type=float, default=40.0, help="of simulated time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
