"""Milliseconds per decode step and prefill tokens per second on CPU, beside torch and transformers.

    python -m benchmarks.engine.bench_cpu                                   # tiny, under a minute
    python -m benchmarks.engine.bench_cpu --shapes qwen3-0.6b-like-llama    # several minutes

`torch alone` is Hearth without its native kernels.
Drives the executor with plans, without server or scheduler. Rounds alternate between providers, so
that both meet the same disturbances of a shared machine; where other processes want the cores too,
`--threads 1` or OMP_WAIT_POLICY=PASSIVE keeps threads from waiting for each other, and `--cpu-time`
counts the seconds of one thread's work instead of those that pass. `--beside 1` puts a process that
never waits on the cores, too: what threads make of a machine that is not theirs alone.
`--step-tokens 256` computes prompts in pieces as small as beside answers (ours alone).
Rows go to `results/engine_cpu.csv`.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import torch

from benchmarks.engine.random_llama import SHAPES, write_random_llama
from benchmarks.harness import (
    Figure,
    append_figures,
    compute_ratios,
    describe_circumstances,
    print_figures,
    summarise,
)
from contracts.inference import SamplingParams
from gpu_pool.plan import BlockId, ForwardPlan, NewSequence, ScheduledSequence, SequenceId
from gpu_pool.worker.settings import DtypeChoice, WorkerSettings
from gpu_pool.worker.worker import create_executor

PROMPT_TOKENS = 128
OUTPUT_TOKENS = 64
MAX_BATCH_TOKENS = 2048
BLOCK_SIZE = 16
OURS = "hearth"
TORCH_ALONE = "torch alone"
TRANSFORMERS = "transformers"
CLOCKS = {False: time.perf_counter, True: time.thread_time}
"""Seconds that pass; seconds of work of the calling thread."""


@dataclass(frozen=True, slots=True)
class Burst:
    """One measurement: all prompts at once, then decoding together."""

    prefill_s: float
    step_s: float
    """Mean over the decode steps."""


class Provider(Protocol):
    """Something that generates."""

    def run(self, prompts: list[list[int]]) -> Burst:
        """Times one burst of greedy generation."""
        ...


class HearthExecutor:
    """Our executor, driven by plans as the scheduler would make them."""

    def __init__(
        self, folder: Path, dtype: DtypeChoice, options: argparse.Namespace, *, is_native: bool
    ) -> None:
        """Loads the model with KV memory for the most sequences that `options` name."""
        self._clock = CLOCKS[options.cpu_time]
        self._num_output = options.tokens
        self._per_step = options.step_tokens // PROMPT_TOKENS
        most = max(options.sequences)
        self._blocks_each = -(-(PROMPT_TOKENS + options.tokens) // BLOCK_SIZE)
        self._executor = create_executor(
            WorkerSettings(
                model_dir=folder,
                dtype=dtype,
                num_threads=options.threads,
                block_size=BLOCK_SIZE,
                num_blocks=most * self._blocks_each,
                native_kernels=is_native,
            )
        )
        self._num_steps = 0
        self._released: tuple[SequenceId, ...] = ()

    def run(self, prompts: list[list[int]]) -> Burst:
        """Prefills in steps of so many tokens, then decodes all sequences step by step."""
        ids = tuple(SequenceId(self._num_steps + i) for i in range(len(prompts)))
        start = self._clock()
        for first in range(0, len(prompts), self._per_step):
            part = range(first, min(first + self._per_step, len(prompts)))
            new = tuple(self._begin(ids[i], prompts[i]) for i in part)
            scheduled = tuple(
                ScheduledSequence(ids[i], len(prompts[i]), (self._list_blocks(i),), True)
                for i in part
            )
            self._step(new, scheduled)
        prefilled = self._clock()
        for _ in range(self._num_output - 1):
            self._step((), tuple(ScheduledSequence(i, 1, ((),), True) for i in ids))
        end = self._clock()
        self._released = ids
        return Burst(prefilled - start, (end - prefilled) / (self._num_output - 1))

    def _begin(self, sequence_id: SequenceId, prompt: list[int]) -> NewSequence:
        """A greedy sequence."""
        sampling = SamplingParams(temperature=0.0, seed=0)
        return NewSequence(sequence_id, tuple(prompt), len(prompt), 0, sampling)

    def _list_blocks(self, index: int) -> tuple[BlockId, ...]:
        """Blocks for the whole life of a sequence."""
        first = index * self._blocks_each
        return tuple(BlockId(first + i) for i in range(self._blocks_each))

    def _step(self, new: tuple[NewSequence, ...], scheduled: tuple[ScheduledSequence, ...]) -> None:
        """Submits one plan and collects it."""
        self._num_steps += len(scheduled)
        self._executor.submit(ForwardPlan(self._num_steps, self._released, new, scheduled))
        self._released = ()
        self._executor.collect()


class TransformersGenerate:
    """`transformers` generate: a static batch, sdpa, dynamic cache."""

    def __init__(self, folder: Path, dtype: torch.dtype, options: argparse.Namespace) -> None:
        """Loads the model."""
        self._clock = CLOCKS[options.cpu_time]
        self._num_output = options.tokens
        from transformers import AutoModelForCausalLM

        self._model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation="sdpa"
        ).eval()

    def run(self, prompts: list[list[int]]) -> Burst:
        """Prefill is a generation of one token; the steps are what a full one takes longer."""
        prefill_s = self._generate(prompts, 1)
        all_s = self._generate(prompts, self._num_output)
        return Burst(prefill_s, (all_s - prefill_s) / (self._num_output - 1))

    @torch.inference_mode()
    def _generate(self, prompts: list[list[int]], num_tokens: int) -> float:
        """Seconds of a greedy generation of exactly `num_tokens`."""
        ids = torch.tensor(prompts)
        start = self._clock()
        self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=num_tokens,
            min_new_tokens=num_tokens,
            pad_token_id=0,
        )
        return self._clock() - start


def create_providers(
    options: argparse.Namespace, folder: Path, torch_dtype: torch.dtype
) -> dict[str, Provider]:
    """Everyone who is measured, ours first."""
    dtype = DtypeChoice(options.dtype)
    providers: dict[str, Provider] = {
        name: HearthExecutor(folder, dtype, options, is_native=name == OURS)
        for name in (OURS, TORCH_ALONE)
        if name == OURS or name in options.peers
    }
    if TRANSFORMERS in options.peers and find_spec("transformers"):
        providers[TRANSFORMERS] = TransformersGenerate(folder, torch_dtype, options)
    return providers


@contextmanager
def company(num_processes: int) -> Generator[None]:
    """Inside, so many processes want a core without a pause."""
    command = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(command) for _ in range(num_processes)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def measure(options: argparse.Namespace, folder: Path) -> list[Figure]:
    """All figures of one shape and their ratios."""
    shapes, dtype, counts = options.shapes, options.dtype, options.sequences
    torch_dtype = getattr(torch, dtype)
    write_random_llama(folder, SHAPES[shapes], torch_dtype)
    providers = create_providers(options, folder, torch_dtype)
    bursts: dict[tuple[str, int], list[Burst]] = {}
    generator = torch.Generator().manual_seed(1)
    for index in range(options.rounds + 1):
        for count in counts:
            size = (count, PROMPT_TOKENS)
            vocab_size = SHAPES[shapes].vocab_size
            prompts = torch.randint(1, vocab_size, size, generator=generator).tolist()
            for name, provider in providers.items():
                burst = provider.run(prompts)
                if index > 0:  # the first round warms up
                    bursts.setdefault((name, count), []).append(burst)
    figures: list[Figure] = []
    what = f"{shapes} {dtype} {options.threads}t" + (", CPU time" if options.cpu_time else "")
    what += f", beside {options.beside}" if options.beside else ""
    if options.step_tokens != MAX_BATCH_TOKENS:
        what += f", steps of {options.step_tokens}"
    for (name, count), found in bursts.items():
        steps_ms = [burst.step_s * 1e3 for burst in found]
        rates = [count * PROMPT_TOKENS / burst.prefill_s for burst in found]
        figures.append(summarise(what, name, "decode step", "ms", count, steps_ms))
        figures.append(summarise(what, name, "prefill", "tok/s", count, rates))
    return figures + compute_ratios(figures, OURS)


def main() -> None:
    """Parses the command line, measures, prints and appends."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--shapes", choices=sorted(SHAPES), default="tiny")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument(
        "--peers",
        nargs="*",
        choices=[TORCH_ALONE, TRANSFORMERS],
        default=[TORCH_ALONE, TRANSFORMERS],
    )
    parser.add_argument("--tokens", type=int, default=OUTPUT_TOKENS, help="per answer (64)")
    parser.add_argument(
        "--step-tokens", type=int, default=MAX_BATCH_TOKENS, help="of prompts in one step (2048)"
    )
    parser.add_argument("--cpu-time", action="store_true", help="of the thread; for --threads 1")
    parser.add_argument("--beside", type=int, default=0, help="so many processes that only spin")
    options = parser.parse_args()
    if options.cpu_time and options.threads != 1:
        parser.error("--cpu-time counts one thread: add --threads 1")
    if options.step_tokens < PROMPT_TOKENS:
        parser.error(f"a step has at least one prompt: --step-tokens {PROMPT_TOKENS}")
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder, company(options.beside):
        figures = measure(options, Path(folder))
    circumstances = describe_circumstances(["torch", "transformers"])
    print_figures(figures)
    print(f"{circumstances.hardware}, {options.threads} threads, load {os.getloadavg()[0]:.1f}")
    print(f"appended to {append_figures('engine_cpu.csv', figures, circumstances)}")


if __name__ == "__main__":
    main()
