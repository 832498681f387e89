"""What the prefix cache costs requests that never find anything in it.

    python -m benchmarks.engine.bench_prefix_cost                                  # tiny, a minute
    python -m benchmarks.engine.bench_prefix_cost --shapes qwen3-0.6b-like-llama   # some minutes
    python -m benchmarks.engine.bench_prefix_cost --sizes 1x4000+16

The real scheduler and the real runner on one thread, by that thread's own time, with the cache and
without in turn; prompts are random, and that none is found is checked. `everything` is all that was
done for the requests, `scheduler` what of it was not computing: names are made and looked up there.
Computing is the same on both sides and nearly all there is, so the ratio of everything tells its
unsteadiness, too; `part of everything` is what the scheduler takes longer with the cache, over
everything without.
Rows go to `results/engine_cpu.csv` with `--record`. Read next: `gpu_pool.kv.block_hash`.
"""

import argparse
import os
import re
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch

from benchmarks.engine.random_llama import SHAPES, write_random_llama
from benchmarks.gpu.load import create_request, draw_prompt
from benchmarks.harness import (
    Figure,
    append_figures,
    describe_circumstances,
    print_figures,
    summarise,
)
from gpu_pool.engine.assembly import create_scheduler
from gpu_pool.engine.messages import AddSequence
from gpu_pool.engine.scheduler import Scheduler
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.garbage import settle_garbage
from gpu_pool.plan import Executor
from gpu_pool.worker.settings import DtypeChoice, WorkerSettings
from gpu_pool.worker.worker import create_executor

PROVIDERS = {True: "cache", False: "no cache"}
RATIO = "cache / no cache"
_BLOCK_TOKENS = 16
_WARM_UPS = 2


@dataclass(frozen=True, slots=True)
class Size:
    """So many requests at once, of so many tokens each."""

    num_requests: int
    num_prompt: int
    num_answer: int

    def __str__(self) -> str:
        """As the command line has it."""
        return f"{self.num_requests}x{self.num_prompt}+{self.num_answer}"

    @property
    def num_blocks(self) -> int:
        """Of the KV memory, twice what they hold: names of earlier ones stay."""
        each = -(-(self.num_prompt + self.num_answer) // _BLOCK_TOKENS)
        return 2 * self.num_requests * each


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of the thread's work."""

    everything_s: float
    scheduler_s: float


def parse_size(text: str) -> Size:
    """`8x128+64`. Raises: `ArgumentTypeError`."""
    found = re.fullmatch(r"(\d+)x(\d+)\+(\d+)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text} is not of the form 8x128+64")
    return Size(*map(int, found.groups()))


def serve(scheduler: Scheduler, executor: Executor, requests: Sequence[AddSequence]) -> Cost:
    """All requests at once, to the end. Raises: `AssertionError` when one finds its prompt."""
    clock, computing_s = time.thread_time, 0.0
    began_s = clock()
    for request in requests:
        scheduler.add(request)
    while scheduler.has_work:
        plan = scheduler.schedule(0)
        assert plan is not None
        submitted_s = clock()
        executor.submit(plan)
        result = executor.collect()
        step_s = clock() - submitted_s
        computing_s += step_s
        scheduler.note_step(step_s)
        scheduler.update(result)
        output = scheduler.take_output()
        for started in output.started if output else ():
            assert started.num_cached_tokens == 0, "a prompt was found"
    everything_s = clock() - began_s
    return Cost(everything_s, everything_s - computing_s)


def measure_side(
    folder: Path, size: Size, num_repeats: int, seed: int, *, is_cached: bool
) -> list[Cost]:
    """The cost of each repeat on one side, behind two that have gone through the KV memory."""
    settings = SchedulerSettings(prefix_caching=is_cached)
    executor = create_executor(
        WorkerSettings(
            model_dir=folder,
            dtype=DtypeChoice.BFLOAT16,
            num_threads=1,
            block_size=_BLOCK_TOKENS,
            num_blocks=size.num_blocks,
        )
    )
    scheduler = create_scheduler(settings, executor.info, lambda: 1)
    settle_garbage()
    rng, number, costs = Random(seed), 0, list[Cost]()
    for _ in range(num_repeats + _WARM_UPS):
        requests: list[AddSequence] = []
        for _ in range(size.num_requests):
            number += 1
            prompt = draw_prompt(rng, size.num_prompt, executor.info.vocab_size)
            requests.append(create_request(number, prompt, size.num_answer, temperature=0.0))
        costs.append(serve(scheduler, executor, requests))
    executor.close()
    return costs[_WARM_UPS:]


def measure(options: argparse.Namespace, folder: Path) -> list[Figure]:
    """All figures of one model."""
    shapes = options.shapes
    write_random_llama(folder, SHAPES[shapes], torch.bfloat16)
    figures: list[Figure] = []
    for size in options.sizes:
        costs: dict[bool, list[Cost]] = defaultdict(list)
        for number in range(options.rounds):
            for is_cached in (number % 2 == 0, number % 2 == 1):  # each is the second as often
                costs[is_cached] += measure_side(
                    folder, size, options.repeats, number, is_cached=is_cached
                )
        figures += describe(f"{shapes} bfloat16 1t, CPU time, {size}", size, costs)
    return figures


def describe(what: str, size: Size, costs: Mapping[bool, Sequence[Cost]]) -> list[Figure]:
    """The rows of one size: milliseconds of a request, and ratios of the pairs."""
    figures: list[Figure] = []
    x = size.num_requests
    for is_cached, provider in PROVIDERS.items():
        for metric in ("everything", "scheduler"):
            times_ms = [1e3 * getattr(cost, f"{metric}_s") / x for cost in costs[is_cached]]
            figures.append(summarise(what, provider, metric, "ms", x, times_ms))
    pairs = list(zip(costs[True], costs[False], strict=True))
    ratios = {
        "everything": [cache.everything_s / none.everything_s for cache, none in pairs],
        "part of everything": [
            (cache.scheduler_s - none.scheduler_s) / none.everything_s for cache, none in pairs
        ],
    }
    for metric, values in ratios.items():
        figures.append(summarise(what, RATIO, metric, "ratio", x, values))
    return figures


def main() -> int:
    """Prints the rows, and records them if asked."""
    parser = argparse.ArgumentParser(
        prog="bench_prefix_cost",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--shapes", choices=list(SHAPES), default="tiny", help="of a random model")
    sizes = [Size(8, 128, 64), Size(1, 128, 64), Size(1, 4000, 64)]
    parser.add_argument("--sizes", type=parse_size, nargs="+", default=sizes, help="8x128+64 ...")
    parser.add_argument("--rounds", type=int, default=4, help="with a fresh engine on each side")
    parser.add_argument("--repeats", type=int, default=3, help="in each round")
    parser.add_argument("--record", action="store_true", help="append to results/engine_cpu.csv")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(options, Path(folder))
    print_figures(figures)
    if options.record:
        append_figures("engine_cpu.csv", figures, describe_circumstances(("torch",)))
    return 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
