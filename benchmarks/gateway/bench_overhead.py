"""What the gateway costs in CPU, against the bare relay, in interleaved rounds on one core.

`python -m benchmarks.gateway.bench_overhead [--rounds 5] [--seconds 2]`. The gateway authenticates
every request against a real tenancy, counts it against limits, parses, routes, seals grants and
writes its journal; the relay checks nothing. A second gateway has its choice of several nodes for
each request that is not streamed. Appends to `results/gateway_overhead.csv`; the rows that count
are the ratios.
"""

import argparse
import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gateway.bench_processes import start_gateway, start_relay
from benchmarks.gateway.cells import BIG, SMALL, STREAMS, Sample, measure, to_figures
from benchmarks.harness import (
    append_figures,
    compute_ratios,
    describe_circumstances,
    print_figures,
)

RESULTS = "gateway_overhead.csv"
PACKAGES = ("uvicorn", "httptools", "uvloop", "aiohttp", "msgspec")
CELLS = (SMALL, BIG, STREAMS)
NUM_NODES = 8
"""Of the second gateway."""


async def run(num_rounds: int, seconds: float, names: Sequence[str]) -> list[Sample]:
    """Every cell in every round, subjects in turn; one short round before to warm up."""
    cells = [cell for cell in CELLS if not names or cell.name.split()[0] in names]
    samples: list[Sample] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with (
            start_gateway(folder / "gateway") as gateway,
            start_gateway(folder / "several", num_quick=NUM_NODES) as several,
        ):
            with start_relay() as relay:
                for number in range(-1, num_rounds):
                    for cell in cells:
                        subjects = (gateway, relay) if cell.is_stream else (gateway, several, relay)
                        for subject in subjects:
                            length_s = seconds if number >= 0 else 0.3
                            sample = measure(cell, subject, length_s, folder)
                            if number >= 0:
                                samples.append(sample)
    return samples


def main() -> None:
    """Runs the rounds, prints medians and ratios, appends the rows."""
    parser = argparse.ArgumentParser(prog="bench_overhead")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--cells", nargs="*", default=[], help="small, big, sse; all without it")
    parser.add_argument("--dry", action="store_true", help="append nothing")
    options = parser.parse_args()
    samples = asyncio.run(run(options.rounds, options.seconds, options.cells))
    figures = to_figures(samples)
    figures += compute_ratios(figures, "hearth")
    print_figures(figures)
    if not options.dry:
        print(append_figures(RESULTS, figures, describe_circumstances(PACKAGES)))


if __name__ == "__main__":
    main()
