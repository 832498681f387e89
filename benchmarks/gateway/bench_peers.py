"""What the gateway costs beside gateways and routers of others, in interleaved rounds on one core.

    python -m benchmarks.gateway.peers /tmp/peers                 # installs them
    python -m benchmarks.gateway.bench_peers --peers /tmp/peers
    python -m benchmarks.gateway.bench_peers --peers /tmp/peers --valkey redis://127.0.0.1:6379/9

The gateway authenticates, counts limits, routes, keeps its journal and its metrics; the peers
check what they check by default (LiteLLM its master key, the others nothing). What is measured has
core 0, everything else core 1. Appends to `results/gateway_peers.csv`; the rows that count are the
ratios.
"""

import argparse
import asyncio
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from benchmarks.gateway.bench_processes import Subject, start_gateway, start_relay
from benchmarks.gateway.cells import (
    BIG,
    MANY_STREAMS,
    SMALL,
    STEADY,
    STREAMS,
    Cell,
    Sample,
    measure,
    to_figures,
)
from benchmarks.gateway.peers import LAUNCHES, start_peer
from benchmarks.harness import (
    append_figures,
    compute_ratios,
    describe_circumstances,
    print_figures,
)

RESULTS = "gateway_peers.csv"
PACKAGES = ("uvicorn", "httptools", "uvloop", "aiohttp", "msgspec")
CELLS = (SMALL, BIG, STREAMS, MANY_STREAMS, STEADY)


async def run(options: argparse.Namespace) -> list[Sample]:
    """Every cell of every round, with all subjects in turn; one short round before to warm up."""
    samples: list[Sample] = []
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        subjects: list[Subject] = [await stack.enter_async_context(start_gateway(folder / "own"))]
        if options.valkey is not None:
            gateway = start_gateway(folder / "shared", options.valkey)
            subjects.append(await stack.enter_async_context(gateway))
        subjects.append(stack.enter_context(start_relay()))
        for name in options.only:
            peer = start_peer(name, options.peers.absolute())
            subjects.append(stack.enter_context(peer))
        for number in range(-1, options.rounds):
            for cell in options.cells:
                for subject in subjects:
                    length_s = _choose_length_s(cell, options.seconds) if number >= 0 else 0.3
                    sample = measure(cell, subject, length_s, folder)
                    if number >= 0:
                        samples.append(sample)
            print(f"round {number + 1} of {options.rounds}", flush=True)
    return samples


def _choose_length_s(cell: Cell, seconds: float) -> float:
    """At fixed times there are few requests, and a stream is a second long."""
    return 2 * seconds if cell.rate_per_s is not None or cell.is_stream else seconds


def _parse_cells(names: Sequence[str]) -> list[Cell]:
    return [cell for cell in CELLS if not names or cell.name.split()[0].strip(",") in names]


def main() -> None:
    """Runs the rounds, prints medians and ratios, appends the rows."""
    parser = argparse.ArgumentParser(prog="bench_peers")
    parser.add_argument("--peers", type=Path, required=True, help="where they are installed")
    parser.add_argument("--only", nargs="*", default=list(LAUNCHES), choices=list(LAUNCHES))
    parser.add_argument("--valkey", help="URL; the gateway a second time, with limits in there")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--cells", nargs="*", default=[], help="small, big, sse, steady; all")
    parser.add_argument("--dry", action="store_true", help="append nothing")
    options = parser.parse_args()
    options.cells = _parse_cells(options.cells)
    figures = to_figures(asyncio.run(run(options)))
    figures += compute_ratios(figures, "hearth")
    print_figures(figures)
    if not options.dry:
        print(append_figures(RESULTS, figures, describe_circumstances(PACKAGES)))


if __name__ == "__main__":
    main()
