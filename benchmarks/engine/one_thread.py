"""Loads at the real engine core on one thread of this CPU, by that thread's own time.

Other processes do not count, though they share its caches. Read next: `bench_pauses` and
`bench_burst`, which say what is asked.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.engine.random_llama import SHAPES, write_random_llama
from benchmarks.gpu.load import Run, Source, carry
from benchmarks.harness import Figure, append_figures, describe_circumstances, print_figures
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.worker.settings import DtypeChoice, WorkerSettings
from gpu_pool.worker.worker import create_executor


def measure(
    folder: Path, options: argparse.Namespace, source: Source, num_blocks: int = 2048
) -> Run:
    """What became of all requests of `source`; `options` are those of `create_parser`."""
    write_random_llama(folder, SHAPES[options.shapes], torch.bfloat16)
    executor = create_executor(
        WorkerSettings(
            model_dir=folder, dtype=DtypeChoice.BFLOAT16, num_threads=1, num_blocks=num_blocks
        )
    )
    settings = SchedulerSettings(max_pause_ms=options.max_pause_ms)
    (run,) = carry(executor, [source], settings, clock=time.thread_time)
    return run


def create_parser(description: str | None, shapes: str) -> argparse.ArgumentParser:
    """What every such benchmark can be told; `shapes` are a random model's by default."""
    parser = argparse.ArgumentParser(description=description, formatter_class=_Form)
    parser.add_argument("--shapes", choices=list(SHAPES), default=shapes, help="of a random model")
    parser.add_argument("--max-pause-ms", type=int, default=SchedulerSettings().max_pause_ms)
    parser.add_argument("--record", action="store_true", help="append to results/engine_cpu.csv")
    return parser


def report(options: argparse.Namespace, run_in: Callable[[Path], list[Figure]]) -> int:
    """Prints the rows of a run in an empty folder, and records them if asked."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        figures = run_in(Path(folder))
    print_figures(figures)
    if options.record:
        append_figures("engine_cpu.csv", figures, describe_circumstances(("torch",)))
    return 0


def name_pause(options: argparse.Namespace) -> str:
    """What the rows call the bound."""
    return f"pauses of {options.max_pause_ms} ms" if options.max_pause_ms else "whole steps"


class _Form(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """The docstring as it stands, and every default."""
