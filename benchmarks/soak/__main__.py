"""`make soak MINUTES=60`, or `python -m benchmarks.soak`: an hour of moderate load.

Two gateways, two nodes whose memory holds two of three models, hot standby, PostgreSQL and Redis,
all on loopback. Exit status 1 and a list of faults where memory grew by more than 2 % after the
warm-up, descriptors or tasks leaked, a request failed that should not, or the ledger is not exact.
Read next: `benchmarks.soak.soak`.
"""

import argparse
import asyncio
import csv
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.fleet.fleet import REGIONS, run_fleet
from benchmarks.fleet.sites import Sites
from benchmarks.harness import Figure, append_figures, conclude, describe_circumstances
from benchmarks.soak.soak import SHAPE, Verdict, soak
from benchmarks.soak.verdict import Growth
from benchmarks.soak.watching import Sample


def main() -> int:
    """The exit status."""
    arguments = read_arguments()
    folder = Path(tempfile.mkdtemp(prefix="hearth-soak-"))
    print(f"{arguments.minutes:g} minutes, logs in {folder}", flush=True)
    verdict = asyncio.run(run(folder, arguments))
    write_samples(folder / "samples.csv", verdict.samples)
    print_growths(verdict.growths)
    for what, count in verdict.counts.items():
        print(f"{count:8d} {what}")
    if arguments.record:
        figures = list_figures(verdict, arguments.minutes)
        append_figures("soak.csv", figures, describe_circumstances(("torch", "aiohttp")))
    return conclude(verdict.faults, folder, "logs and samples")


def read_arguments() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        prog="make soak MINUTES=60 ARGS=…",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--warm-share", type=float, default=1 / 3, help="of it (default: a third)")
    parser.add_argument("--clients", type=int, default=6, help="at once (default: 6)")
    parser.add_argument("--record", action="store_true", help="append rows to the results")
    return parser.parse_args()


async def run(folder: Path, arguments: argparse.Namespace) -> Verdict:
    """A fleet of its own, soaked."""
    async with run_fleet(folder, Sites("", tuple(REGIONS)), SHAPE) as fleet:
        return await soak(fleet, arguments.minutes, arguments.warm_share, arguments.clients)


def print_growths(growths: Sequence[Growth]) -> None:
    """The table."""
    table = Table("process", "MiB early", "MiB late", "growth", "descriptors", "tasks")
    for one in growths:
        pairs = [f"{p[0]} → {p[1]}" if p else "" for p in (one.descriptors, one.tasks)]
        sizes = [f"{one.early_mib:.1f}", f"{one.late_mib:.1f}", f"{one.share:+.2%}"]
        table.add_row(one.process, *sizes, *pairs)
    Console(width=120).print(table)


def list_figures(verdict: Verdict, minutes: float) -> list[Figure]:
    """Rows of the results; process ids say nothing there, so that children are numbered."""
    figures: list[Figure] = []
    x = round(minutes)

    def add(metric: str, unit: str, value: float) -> None:
        figures.append(Figure("soak", "hearth", metric, unit, x, value, value, value))

    for number, one in enumerate(verdict.growths):
        member, _, child = one.process.partition("/")
        name = f"{member}, child {number}" if child else member
        add(f"{name}: memory after the warm-up", "MiB", one.early_mib)
        add(f"{name}: growth from then on", "ratio", one.share)
        for what, pair in (("descriptors", one.descriptors), ("tasks", one.tasks)):
            if pair is not None:
                add(f"{name}: {what} more at the last rest", "count", pair[1] - pair[0])
    for what, count in verdict.counts.items():
        add(what, "count", count)
    return figures


def write_samples(path: Path, samples: Sequence[Sample]) -> None:
    """Everything that was sampled, for whoever looks for the leak."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(Sample.__slots__)
        writer.writerows(astuple(sample) for sample in samples)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
