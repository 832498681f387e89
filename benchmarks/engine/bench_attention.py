"""Attention of one layer over paged KV on one core of this CPU, beside torch's own.

    python -m benchmarks.engine.bench_attention                 # some seconds
    python -m benchmarks.engine.bench_attention --record

Prompts whole and in pieces behind a long history, and single tokens of many answers, bf16. Torch
(`scaled_dot_product_attention`) gets keys and values that already lie together, for nothing; ours
read blocks and write the step's own. Time is that of the one thread, so that other processes do not
count, though they share its caches. Rows go to `results/engine_attention.csv`.
Read next: `gpu_pool/kernels/cpu/attention.cpp`.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.harness import (
    Figure,
    append_figures,
    compute_ratios,
    describe_circumstances,
    print_figures,
    summarise,
)
from gpu_pool.attention.batch import Span
from gpu_pool.attention.kv_cache import KvCache, KvShape
from gpu_pool.attention.paged import attend, create_paged_step
from gpu_pool.attention.reach import FULL_REACH
from gpu_pool.kernels.cpu.build import get_cache_folder
from gpu_pool.kernels.cpu.levels import LEVELS, find_level
from gpu_pool.kernels.cpu.library import NativeKernels, load_kernels
from gpu_pool.worker.model_memory import CpuPlaces

RESULTS = "engine_attention.csv"
BLOCK_SIZE = 16
NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 16, 8, 128
"""Qwen3-0.6B's."""


@dataclass(frozen=True, slots=True)
class Work:
    """So many sequences at once, each of which computes some tokens behind a history."""

    name: str
    num_sequences: int
    history: int
    num_tokens: int

    @property
    def context(self) -> int:
        """Tokens of a sequence in the end."""
        return self.history + self.num_tokens


WORKS = (
    Work("prompts of 128", 2, 0, 128),
    Work("256 behind 768", 1, 768, 256),
    Work("256 behind 3,840", 1, 3840, 256),
    Work("answers at 160", 32, 159, 1),
    Work("answers at 4,096", 8, 4095, 1),
    Work("one answer at 4,096", 1, 4095, 1),
)


def create_ours(work: Work, kernels: NativeKernels) -> Callable[[], Tensor]:
    """One layer's step over blocks in no order."""
    each = -(-work.context // BLOCK_SIZE)
    shape = KvShape(1, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM)
    num_blocks = work.num_sequences * each
    cache = KvCache(
        shape, num_blocks, torch.bfloat16, kernels=kernels, create_zeros=CpuPlaces().create_zeros
    )
    cache.blocks.normal_()
    tables = np.random.default_rng(0).permutation(num_blocks)
    spans = [
        Span(work.history, work.num_tokens, table)
        for table in tables.reshape(work.num_sequences, each).astype(np.int64)
    ]
    step = create_paged_step(spans, cache, FULL_REACH)
    num_rows = work.num_sequences * work.num_tokens
    q_TNH = torch.randn(num_rows, NUM_HEADS, HEAD_DIM, dtype=torch.bfloat16)
    kv_TE = torch.randn(num_rows, shape.slot_elements, dtype=torch.bfloat16)
    return lambda: attend(0, q_TNH, kv_TE, step)


def create_torchs(work: Work) -> Callable[[], Tensor]:
    """The same sums by torch, all sequences in one call."""
    query = (work.num_sequences, NUM_HEADS, work.num_tokens, HEAD_DIM)
    q = torch.randn(query, dtype=torch.bfloat16)
    kv = (work.num_sequences, NUM_KV_HEADS, work.context, HEAD_DIM)
    k, v = torch.randn(kv, dtype=torch.bfloat16), torch.randn(kv, dtype=torch.bfloat16)
    is_whole = work.history == 0
    mask = None
    if not is_whole and work.num_tokens > 1:
        mask = torch.ones(work.num_tokens, work.context).tril(work.history).bool()
    return lambda: scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=is_whole, enable_gqa=True
    )


def time_calls(call: Callable[[], object], rounds: int) -> list[float]:
    """Milliseconds of each of some calls, behind one that warms up."""
    times_ms: list[float] = []
    for _ in range(rounds + 1):
        begun_s = time.thread_time()
        call()
        times_ms.append(1e3 * (time.thread_time() - begun_s))
    return times_ms[1:]


def measure(works: Sequence[Work], kernels: NativeKernels, rounds: int) -> list[Figure]:
    """All of them, ours and torch's in turn."""
    figures: list[Figure] = []
    for work in works:
        providers = {"hearth": create_ours(work, kernels), "torch": create_torchs(work)}
        for name, call in providers.items():
            x = work.num_sequences
            figures.append(summarise(work.name, name, "layer", "ms", x, time_calls(call, rounds)))
    return figures + compute_ratios(figures, "hearth")


def main() -> int:
    """Measures, prints, and records if asked."""
    parser = argparse.ArgumentParser(
        prog="bench_attention",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--record", action="store_true", help=f"append to results/{RESULTS}")
    levels = [level.name for level in LEVELS]
    parser.add_argument("--level", choices=levels, help="at most; the best of this CPU otherwise")
    options = parser.parse_args()
    kernels = load_kernels(get_cache_folder(), find_level(options.level or ""))
    torch.set_num_threads(1)
    with torch.inference_mode():
        figures = measure(WORKS, kernels, options.rounds)
    print_figures(figures)
    if options.record:
        append_figures(RESULTS, figures, describe_circumstances(("torch",)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
