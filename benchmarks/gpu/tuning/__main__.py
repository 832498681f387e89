"""Prints, for each case, what is launched today and the best settings.

python -m benchmarks.gpu.tuning decode prefill products

Several processes compile first. What is found goes into each kernel's `choose_…_launch` by hand.
Without a GPU it only tries itself, in triton's interpreter (`TRITON_INTERPRET=1`). Where packages
are missing: `export PYTHONPATH=$(python3 -m benchmarks.gpu.wheels)` first. Read next: `trial`.
"""

import argparse
import os
import subprocess
import sys
from itertools import chain, islice

from benchmarks.gpu.bench import create_command
from benchmarks.gpu.timing import IS_GPU
from benchmarks.gpu.tuning.decode import list_decodes
from benchmarks.gpu.tuning.prefill import list_prefills
from benchmarks.gpu.tuning.products import list_products
from benchmarks.gpu.tuning.trial import can_run, list_results

_KINDS = {"decode": list_decodes, "prefill": list_prefills, "products": list_products}


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.tuning", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("kinds", nargs="+", choices=sorted(_KINDS))
    processes = min(14, os.cpu_count() or 1) if IS_GPU else 0
    parser.add_argument("--processes", type=int, default=processes, help="that compile first")
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    trials = chain.from_iterable(_KINDS[kind]() for kind in asked.kinds)
    if asked.part is not None:
        for trial in islice(trials, asked.part, None, asked.processes):
            can_run(trial)
        return 0
    _compile(asked.kinds, asked.processes)
    for line in list_results(trials):
        print(line)
    return 0


def _compile(kinds: list[str], num_processes: int) -> None:
    """Fills triton's cache: each process launches its share of the settings once."""
    arguments = [*kinds, "--processes", str(num_processes), "--part"]
    processes = [
        subprocess.Popen(create_command("benchmarks.gpu.tuning", *arguments, str(part)))
        for part in range(num_processes)
    ]
    for process in processes:
        process.wait()


if __name__ == "__main__":
    sys.exit(main())
