"""Milliseconds per decode step of 8 rows on a CPU, by how many of them have an adapter.

    python -m benchmarks.engine.bench_adapters                            # tiny, under a minute
    python -m benchmarks.engine.bench_adapters --shapes qwen3-0.6b-like-llama

Every adapted row has an adapter of its own, for all products of all layers; `one adapter` is that
of all rows. Without adapters a step is one native call (`models/native_passage`); `layer by layer`
is the same step without that call, which is what adapters begin with. `longest gap` is the longest
step while an adapter is loaded beside steps of rows without one, and of as many steps without a
load. Rounds take turns, as elsewhere; `--cpu-time` counts the seconds of one thread's work, for
machines that others use, too (the longest gap is always one that passes). Rows go to
`results/engine_adapters.csv`.
"""

import argparse
import hashlib
import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from benchmarks.engine.random_llama import SHAPES, write_random_llama
from benchmarks.harness import (
    Figure,
    append_figures,
    describe_circumstances,
    print_figures,
    summarise,
)
from contracts.adapters import AdapterRef
from contracts.inference import SamplingParams
from gpu_pool.plan import (
    AdapterFile,
    BlockId,
    Executor,
    ForwardPlan,
    NewSequence,
    ScheduledSequence,
    SequenceId,
)
from gpu_pool.weights.config import read_config
from gpu_pool.worker.settings import DtypeChoice, WorkerSettings
from gpu_pool.worker.worker import create_executor

NUM_ROWS = 8
PROMPT_TOKENS = 128
BLOCK_SIZE = 16
ADAPTED = (0, 1, 4, 8)
PRODUCTS = tuple(f"{name}_proj.weight" for name in ("q", "k", "v", "o", "gate", "up", "down"))


def write_adapter(path: Path, model_dir: Path, rank: int, seed: int) -> AdapterFile:
    """An adapter with random matrices for all products of a model."""
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for source in read_config(model_dir).require_causal().parameters.values():
        for part in source.parts:
            if part.name.endswith(PRODUCTS):
                module = f"base_model.model.{part.name.removesuffix('.weight')}"
                for half, shape in (("A", (rank, part.shape[1])), ("B", (part.shape[0], rank))):
                    values = torch.randn(shape, generator=generator) * 0.02
                    tensors[f"{module}.lora_{half}.weight"] = values.bfloat16()
    save_file(tensors, path)
    digest = hashlib.sha256(path.read_bytes()).digest()
    ref = AdapterRef(weights_sha256=digest, num_bytes=path.stat().st_size, scale=1.0, rank=rank)
    return AdapterFile(ref.digest, str(path), 1.0)


class Driver:
    """Our executor, driven by plans."""

    def __init__(self, executor: Executor, num_tokens: int, clock: Callable[[], float]) -> None:
        """Answers have `num_tokens`. `clock` gives seconds."""
        self.clock = clock
        self._executor = executor
        self._num_tokens = num_tokens
        self._blocks_each = -(-(PROMPT_TOKENS + num_tokens) // BLOCK_SIZE)
        self._num_steps = 0
        self._released: tuple[SequenceId, ...] = ()

    def run(self, prompts: Sequence[list[int]], adapters: Sequence[AdapterFile | None]) -> Any:
        """Seconds of the prompts' step, and of each decode step."""
        ids = [SequenceId(self._num_steps * NUM_ROWS + i) for i in range(len(prompts))]
        new = tuple(
            NewSequence(i, tuple(p), len(p), 0, SamplingParams(temperature=0.0, seed=0), adapter)
            for i, p, adapter in zip(ids, prompts, adapters, strict=True)
        )
        prefill = tuple(
            ScheduledSequence(i, PROMPT_TOKENS, (self._list_blocks(row),), True)
            for row, i in enumerate(ids)
        )
        prefill_s = self._step(new, prefill)
        decode = tuple(ScheduledSequence(i, 1, ((),), True) for i in ids)
        steps_s = [self._step((), decode) for _ in range(self._num_tokens - 1)]
        self._released = tuple(ids)
        return prefill_s, steps_s

    def load(self, adapter: AdapterFile) -> float:
        """Seconds that loading takes, with nothing beside it."""
        begin_s = time.perf_counter()
        has_news = threading.Event()
        self._executor.load_adapter(adapter, has_news.set)
        has_news.wait()
        (news,) = self._executor.poll_adapters()
        assert news.is_loaded, news
        return time.perf_counter() - begin_s

    def _list_blocks(self, row: int) -> tuple[BlockId, ...]:
        first = row * self._blocks_each
        return tuple(BlockId(first + i) for i in range(self._blocks_each))

    def _step(self, new: Any, scheduled: Any) -> float:
        self._num_steps += 1
        begin_s = self.clock()
        self._executor.submit(ForwardPlan(self._num_steps, self._released, new, scheduled))
        self._released = ()
        self._executor.collect()
        return self.clock() - begin_s


def measure(options: argparse.Namespace, folder: Path) -> list[Figure]:
    """All figures."""
    shapes = SHAPES[options.shapes]
    write_random_llama(folder, shapes, torch.bfloat16)
    blocks = NUM_ROWS * -(-(PROMPT_TOKENS + options.tokens) // BLOCK_SIZE)
    executor = create_executor(
        WorkerSettings(
            model_dir=folder,
            dtype=DtypeChoice.BFLOAT16,
            num_threads=options.threads,
            block_size=BLOCK_SIZE,
            num_blocks=blocks,
            adapter_bytes=1 << 40,
            max_adapter_rank=options.rank,
        )
    )
    clock = time.thread_time if options.cpu_time else time.perf_counter
    driver = Driver(executor, options.tokens, clock)
    files = [
        write_adapter(folder / f"{n}.safetensors", folder, options.rank, n)
        for n in range(NUM_ROWS + 1)
    ]
    loads_ms = [driver.load(file) * 1e3 for file in files[:NUM_ROWS]]
    generator = torch.Generator().manual_seed(1)
    size = (NUM_ROWS, PROMPT_TOKENS)
    what = f"{options.shapes} rank {options.rank} {options.threads}t"
    what += ", CPU time" if options.cpu_time else ""
    steps: dict[tuple[str, int], list[float]] = {}
    prefills: dict[tuple[str, int], list[float]] = {}
    runner: Any = executor._runner  # type: ignore[attr-defined]
    model: Any = runner._lane._model
    native = model._native
    cases: list[tuple[str, int, list[AdapterFile | None]]] = [
        ("adapters", n, [*files[:n], *[None] * (NUM_ROWS - n)]) for n in ADAPTED
    ]
    nobodys: list[AdapterFile | None] = [None] * NUM_ROWS
    cases.append(("one adapter", NUM_ROWS, [files[0] for _ in nobodys]))
    cases.append(("layer by layer", 0, nobodys))
    prompts: list[list[int]] = []
    for index in range(options.rounds + 1):
        prompts = torch.randint(1, shapes.vocab_size, size, generator=generator).tolist()
        for name, count, adapters in cases:
            model._native = None if name == "layer by layer" else native
            prefill_s, steps_s = driver.run(prompts, adapters)
            if index > 0:  # the first round warms up
                steps.setdefault((name, count), []).append(sum(steps_s) / len(steps_s) * 1e3)
                prefills.setdefault((name, count), []).append(NUM_ROWS * PROMPT_TOKENS / prefill_s)
    model._native = native
    figures = [
        summarise(what, name, "decode step", "ms", count, values)
        for (name, count), values in steps.items()
    ]
    figures += [
        summarise(what, name, "prefill", "tok/s", count, values)
        for (name, count), values in prefills.items()
    ]
    figures.append(summarise(what, "alone", "load", "ms", 1, loads_ms))
    return figures + measure_gaps(driver, executor, prompts, files[NUM_ROWS], options, what)


def measure_gaps(
    driver: Driver,
    executor: Executor,
    prompts: Sequence[list[int]],
    file: AdapterFile,
    options: argparse.Namespace,
    what: str,
) -> list[Figure]:
    """The longest step of a run with a load beside it, and of one without."""
    driver.clock = time.perf_counter
    found: dict[str, list[float]] = {"beside a load": [], "alone": []}
    nobodys: list[AdapterFile | None] = [None] * NUM_ROWS
    for _ in range(options.rounds):
        for name, values in found.items():
            if name != "alone":
                executor.load_adapter(file, lambda: None)
            _, steps_s = driver.run(prompts, nobodys)
            values.append(max(steps_s) * 1e3)
            if name != "alone":
                while not executor.poll_adapters():
                    time.sleep(0.01)
                executor.drop_adapter(file.digest)
    return [summarise(what, name, "longest gap", "ms", 0, values) for name, values in found.items()]


def main() -> None:
    """Parses the command line, measures, prints and appends."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--shapes", choices=sorted(SHAPES), default="tiny")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=32, help="per answer (32)")
    parser.add_argument("--cpu-time", action="store_true", help="of the thread; for --threads 1")
    options = parser.parse_args()
    if options.cpu_time and options.threads != 1:
        parser.error("--cpu-time counts one thread: add --threads 1")
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(options, Path(folder))
    circumstances = describe_circumstances(["torch"])
    print_figures(figures)
    print(f"{circumstances.hardware}, {options.threads} threads, load {os.getloadavg()[0]:.1f}")
    print(f"appended to {append_figures('engine_adapters.csv', figures, circumstances)}")


if __name__ == "__main__":
    main()
