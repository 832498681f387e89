"""Time from the order to wake until the first token, with weights that land under the first step.

Both ways are taken in turns on one loaded model: all weights first and then the step, or the step
as soon as its first layer is there. The prompt's length says how much there is to compute
meanwhile. `bandwidth-bound` slows the copy down to a given rate, as a bus between host and device
would be slower than what computes; it is what a GPU sees, and not what a CPU's memory does.

examples:
  make bench WHAT=standby.bench_landing
  python -m benchmarks.standby.bench_landing --layers 4 --rounds 3 --no-record
"""

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import torch
from rich.progress import track

from benchmarks.engine.random_llama import LlamaShapes, write_random_llama
from benchmarks.harness import (
    Figure,
    append_figures,
    compute_ratios,
    describe_circumstances,
    print_figures,
    summarise,
)
from contracts.inference import SamplingParams
from gpu_pool.cpu_share import count_own_threads
from gpu_pool.models.network import CausalModel, Encoder
from gpu_pool.plan import BlockId, ForwardPlan, NewSequence, ScheduledSequence, SequenceId
from gpu_pool.weights.cpu_memory import DroppedMemory, KeptMemory
from gpu_pool.weights.packed_writing import NO_COPY, WeightCopy
from gpu_pool.weights.tensor_search import find_portions
from gpu_pool.worker import worker as worker_module
from gpu_pool.worker.model_memory import CpuPlaces, ModelMemory, list_parts
from gpu_pool.worker.plan_worker import Worker
from gpu_pool.worker.settings import WorkerSettings
from gpu_pool.worker.worker import create_executor

OURS: Final = "as layers land"
WHOLE: Final = "after all have landed"
_BLOCK: Final = 16


class SlowPlaces(CpuPlaces):
    """As on any CPU, but for the rate at which content comes back. Units: bytes per second."""

    def __init__(self, bytes_per_s: float | None) -> None:
        """None: as fast as memory is."""
        self._bytes_per_s = bytes_per_s
        self._free_s = 0.0

    def finish(
        self,
        model: CausalModel | Encoder,
        kv: Sequence[torch.Tensor] = (),
        copy: WeightCopy = NO_COPY,
    ) -> ModelMemory:
        portions = find_portions(model, list_parts(model))
        if self._bytes_per_s is None:
            weights = KeptMemory(portions, count_own_threads())
        else:
            weights = KeptMemory(portions, 1, self._read)
        # Without the CPU's own exception.
        return ModelMemory(weights, [DroppedMemory(kv)], copy=copy)

    def _read(self, file: int, views: Sequence[memoryview], offset: int) -> int:
        """One thread calls this: what one piece is early, the next one waits."""
        assert self._bytes_per_s is not None
        began_s = time.perf_counter()
        num_read = os.preadv(file, views, offset)
        self._free_s = max(self._free_s, began_s) + num_read / self._bytes_per_s
        time.sleep(max(0.0, self._free_s - time.perf_counter()))
        return num_read


def measure(
    what: str, folder: Path, lengths: Sequence[int], rounds: int, bytes_per_s: float | None
) -> list[Figure]:
    """The rows of one way of copying. Raises: `AssertionError` where tokens differ."""
    worker_module.create_places = lambda *_: SlowPlaces(bytes_per_s)  # type: ignore[assignment]
    settings = WorkerSettings(model_dir=folder, num_blocks=1 + max(lengths) // _BLOCK)
    worker = create_executor(settings)
    figures: list[Figure] = []
    for length in lengths:
        taken: dict[str, list[float]] = {OURS: [], WHOLE: []}
        tokens: set[tuple[int, ...]] = set()
        for round_ in track(range(rounds), f"{what}, {length} tokens", transient=True):
            for way in (OURS, WHOLE) if round_ % 2 else (WHOLE, OURS):
                worker.sleep()
                began_s = time.perf_counter()
                worker.wake()
                if way == WHOLE:
                    worker.finish_landing()
                tokens.add(_compute_first(worker, length))
                taken[way].append(time.perf_counter() - began_s)
        assert len(tokens) == 1, "the ways draw different tokens"
        figures += [
            summarise(what, way, "wake to first token", "s", length, times)
            for way, times in taken.items()
        ]
    worker.close()
    return figures


def _compute_first(worker: Worker, length: int) -> tuple[int, ...]:
    """The first token behind a prompt of `length` tokens; its row is gone afterwards."""
    sequence_id = SequenceId(0)
    prompt = tuple(1 + i % 200 for i in range(length))
    blocks = tuple(BlockId(i) for i in range(-(-length // _BLOCK)))
    new = NewSequence(sequence_id, prompt, length, 0, SamplingParams(temperature=0.0, seed=0))
    work = ScheduledSequence(sequence_id, length, (blocks,), samples=True)
    worker.submit(ForwardPlan(1, (), (new,), (work,)))
    result = worker.collect()
    worker.submit(ForwardPlan(2, (sequence_id,), (), ()))
    worker.collect()
    return result.sampled[0].token_ids


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=8, help="of 67 MB each in fp32")
    parser.add_argument("--lengths", type=int, nargs="+", default=[32, 128, 512])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--bus", type=float, default=0.4, help="GB/s where the bus is the bound")
    parser.add_argument("--no-record", action="store_true", help="leave results/ alone")
    asked = parser.parse_args()
    shapes = LlamaShapes(1024, 4096, asked.layers, 16, 16, 64, 4096)
    with tempfile.TemporaryDirectory(prefix="hearth-bench-") as name:
        folder = Path(name)
        write_random_llama(folder, shapes, torch.float32, seed=1)
        run = partial(measure, folder=folder, lengths=asked.lengths, rounds=asked.rounds)
        figures = run(f"{asked.layers} layers, memory", bytes_per_s=None)
        bus = f"{asked.layers} layers, bus of {asked.bus:g} GB/s"
        figures += run(bus, bytes_per_s=asked.bus * 1e9)
    figures += compute_ratios(figures, OURS)
    print_figures(figures)
    if not asked.no_record:
        path = append_figures("standby_landing.csv", figures, describe_circumstances(["torch"]))
        print(f"appended to {path}")


if __name__ == "__main__":
    main()
