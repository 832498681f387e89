"""Attention of single tokens: keys of a split and of a product, warps, stages, programs.

Read next: `gpu_pool.kernels.split_decode`.
"""

from collections.abc import Iterator
from functools import partial
from typing import Final

import torch

from benchmarks.gpu.timing import DEVICE, IS_GPU, count_copies
from benchmarks.gpu.tuning.trial import Trial, draw
from gpu_pool.kernels.gpu_traits import find_traits
from gpu_pool.kernels.paged_attention import PagedLayout
from gpu_pool.kernels.split_decode import SplitLaunch, split_decode_triton
from gpu_pool.kernels.split_plan import MAX_SPLITS, SplitPlan, plan_splits

_BLOCK: Final = 16
_KV_HEADS: Final = 8
_HEAD_DIM: Final = 128
_CASES: Final = (
    (32, 1, 1024), (32, 1, 32768), (32, 8, 4096), (32, 64, 1024), (32, 256, 600), (16, 1, 1024),
    (16, 256, 330), (16, 256, 850),
) if IS_GPU else ((16, 2, 40),)  # fmt: skip
"""Query heads, sequences, context."""
_LAUNCHES: Final = (
    (32, 4, 3, 4), (32, 4, 4, 4), (32, 2, 3, 6), (32, 2, 4, 5), (64, 2, 3, 3), (64, 4, 2, 3),
    (64, 4, 3, 2), (64, 4, 3, 3), (64, 4, 4, 2), (64, 4, 5, 3), (64, 8, 2, 3), (64, 8, 3, 2),
    (128, 4, 2, 2), (128, 8, 2, 2), (128, 8, 3, 1),
) if IS_GPU else ((16, 2, 3, 1),)  # fmt: skip
"""Keys of a product, warps, stages, programs of a processor."""
_SPLIT_KEYS: Final = (64, 128, 256) if IS_GPU else (64,)


def list_decodes() -> Iterator[Trial]:
    """All settings of all cases."""
    num_processors = find_traits(DEVICE).num_processors
    for heads, batch, length in _CASES:
        case = f"decode {heads}/{_KV_HEADS} x {batch} at {length}"
        blocks = -(-length // _BLOCK)
        num_slots = batch * blocks * _BLOCK
        num_layers = count_copies(num_slots * 4 * _KV_HEADS * _HEAD_DIM)
        slots_XE = draw(num_layers * num_slots, 2 * _KV_HEADS * _HEAD_DIM)
        q_BNH = draw(batch, heads, _HEAD_DIM)
        tables_BC = torch.randperm(batch * blocks, device=DEVICE).view(batch, -1).int()
        lengths_B = torch.full((batch,), length, dtype=torch.int32, device=DEVICE)

        attend = partial(split_decode_triton, q_BNH, slots_XE, tables_BC)
        layouts = [
            PagedLayout(layer, num_layers, _BLOCK, _KV_HEADS, _HEAD_DIM**-0.5)
            for layer in range(num_layers)
        ]
        plan = plan_splits(lengths_B, length)
        yield Trial(case, "chosen", [partial(attend, plan, at) for at in layouts], is_chosen=True)
        for split_keys in _SPLIT_KEYS:
            plan = cut_evenly(batch, length, split_keys)
            for keys, num_warps, num_stages, programs in _LAUNCHES:
                if keys > split_keys:
                    continue
                launch = SplitLaunch(keys, num_warps, num_stages, programs * num_processors)
                setting = f"{split_keys} by {keys} w{num_warps} s{num_stages} p{programs}"
                yield Trial(case, setting, [partial(attend, plan, at, launch) for at in layouts])


def cut_evenly(batch: int, length: int, split_keys: int) -> SplitPlan:
    """The plan of contexts of one length, in splits of so many keys, or of twice and so on."""
    while length > split_keys * MAX_SPLITS:
        split_keys *= 2
    firsts = range(0, length, split_keys)
    items = [
        (sequence, first, min(first + split_keys, length))
        for sequence in range(batch)
        for first in firsts
    ]
    bounds = torch.arange(0, len(items) + 1, len(firsts), dtype=torch.int32, device=DEVICE)
    return SplitPlan(bounds, torch.tensor(items, dtype=torch.int32, device=DEVICE))
