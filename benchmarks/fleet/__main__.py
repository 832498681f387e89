"""`make prove-fleet`, or `python -m benchmarks.fleet`: the fleet under load, replaced or hurt.

Needs PostgreSQL's and Redis' (or Valkey's) programs; as root each site has a network of its own.
Without, there are no black holes, and what it prints in the end says so.
Exit status 1 and a list of faults if anything does not hold. Read next: `benchmarks.fleet.proof`.
"""

import argparse
import asyncio
import os
import signal
import sys
import tempfile
from pathlib import Path

from benchmarks.fleet.fleet import REGIONS, SMALL, SPLIT, WHOLE, run_fleet
from benchmarks.fleet.proof import Verdict, prove
from benchmarks.fleet.sites import STORE, Sites, can_be_apart, make_sites, run_in_hub
from benchmarks.harness import (
    append_figures,
    conclude,
    describe_circumstances,
    print_figures,
)

SCENARIOS = ("rolling", "faults", "split")
SITES = (*REGIONS, STORE)


def main() -> int:
    """The exit status."""
    arguments = read_arguments()
    if arguments.inside is None and not arguments.loopback and can_be_apart():
        with make_sites(SITES) as sites:
            own = [sys.executable, "-m", "benchmarks.fleet", "--inside", sites.prefix]
            return run_in_hub(sites, [*own, *sys.argv[1:]])
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a script's background
    signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    sites = Sites(arguments.inside or "", SITES)
    wanted = SCENARIOS if arguments.what == "all" else (arguments.what,)
    folder = Path(tempfile.mkdtemp(prefix="hearth-fleet-"))
    verdicts = [asyncio.run(run(folder, sites, what, arguments)) for what in wanted]
    figures = [figure for verdict in verdicts for figure in verdict.figures]
    print_figures(figures)
    if arguments.record:
        append_figures("fleet.csv", figures, describe_circumstances(("torch", "aiohttp")))
    faults = [fault for verdict in verdicts for fault in verdict.faults]
    left_out = [each for verdict in verdicts for each in verdict.left_out]
    return conclude(faults, folder, "logs", left_out)


def read_arguments() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        prog="make prove-fleet ARGS=…",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "what",
        nargs="?",
        default="all",
        choices=("all", *SCENARIOS),
        help="every process replaced in order, all that can fail hurt, or nodes for prompts and "
        "for answers hurt (default: all three)",
    )
    parser.add_argument("--streams", type=int, default=200, help="at once (default: 200)")
    parser.add_argument(
        "--small", action="store_true", help="two gateways and two nodes; for `rolling` alone"
    )
    parser.add_argument("--loopback", action="store_true", help="no networks of their own")
    parser.add_argument("--record", action="store_true", help="append rows to the results")
    parser.add_argument("--inside", default=None, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.small and arguments.what != "rolling":
        parser.error("--small goes with `rolling` alone: the others hurt nodes that it lacks")
    return arguments


async def run(folder: Path, sites: Sites, what: str, arguments: argparse.Namespace) -> Verdict:
    """One scenario with a fleet of its own."""
    own = folder / what
    own.mkdir()
    place = "networks of their own" if sites.are_apart else "loopback"
    print(f"{what}: {arguments.streams} streams, sites on {place}", flush=True)
    shape = SPLIT if what == "split" else SMALL if arguments.small else WHOLE
    async with run_fleet(own, sites, shape) as fleet:
        return await prove(fleet, own, what, arguments.streams)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
