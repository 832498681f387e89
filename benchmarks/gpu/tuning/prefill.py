"""Attention of prompts: rows and keys of a tile, warps, stages; torch's own beside them.

Read next: `gpu_pool.kernels.paged_launch`.
"""

from collections.abc import Iterator
from functools import partial
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.gpu.timing import DEVICE, IS_GPU
from benchmarks.gpu.tuning.trial import Trial, draw
from gpu_pool.kernels.paged_attention import (
    PagedBatch,
    PagedLayout,
    find_tile_rows,
    list_tiles,
    paged_attention_triton,
)
from gpu_pool.kernels.paged_launch import TileLaunch

_BLOCK: Final = 16
_HEADS: Final = 32
_KV_HEADS: Final = 8
_HEAD_DIM: Final = 128
_CASES: Final = ((1024, 0), (8192, 0), (32768, 0), (2048, 14336)) if IS_GPU else ((20, 0), (5, 30))
"""New tokens, cached ones."""
_LAUNCHES: Final = (
    (64, 64, 4, 2), (64, 64, 4, 3), (64, 128, 4, 2), (64, 64, 8, 3), (128, 64, 8, 2),
    (128, 64, 8, 3), (128, 64, 8, 4), (128, 128, 8, 2), (128, 128, 8, 3), (128, 32, 8, 3),
    (128, 64, 4, 2), (128, 64, 4, 3), (256, 64, 8, 2),
) if IS_GPU else ((64, 16, 4, 2),)  # fmt: skip
"""Rows, keys, warps, stages."""
_CALLS: Final = 8 if IS_GPU else 1
"""Of a chain: all read the same, which stays in the cache within a long call, too."""


def list_prefills() -> Iterator[Trial]:
    """All settings of all cases."""
    layout = PagedLayout(0, 1, _BLOCK, _KV_HEADS, _HEAD_DIM**-0.5)
    for num_new, num_cached in _CASES:
        length = num_new + num_cached
        tera = 2 * (length**2 - num_cached**2) * _HEADS * _HEAD_DIM / 1e12
        case = f"prefill {num_new} behind {num_cached} ({tera:.3f} TFLOP)"
        q_TNH = draw(num_new, _HEADS, _HEAD_DIM)
        slots_XE = draw(-(-length // _BLOCK) * _BLOCK, 2 * _KV_HEADS * _HEAD_DIM)
        attend = partial(paged_attention_triton, q_TNH, slots_XE)
        if not num_cached:
            theirs = partial(_attend_by_torch, q_TNH, slots_XE[:num_new])
            yield Trial(case, "torch", [theirs] * _CALLS, is_chosen=True)
        batch = _cut(num_new, length, find_tile_rows(q_TNH, layout))
        yield Trial(case, "chosen", [partial(attend, batch, layout)] * _CALLS, is_chosen=True)
        for rows, keys, num_warps, num_stages in _LAUNCHES:
            launch = TileLaunch(keys, num_warps, num_stages)
            call = partial(attend, _cut(num_new, length, rows), layout, launch)
            setting = f"{rows} rows x {keys} w{num_warps} s{num_stages}"
            yield Trial(case, setting, [call] * _CALLS)


def _cut(num_new: int, length: int, rows: int) -> PagedBatch:
    """One prompt in tiles of so many rows, its blocks in no order."""
    tile_tokens = rows * _KV_HEADS // _HEADS
    tables_BC = torch.randperm(-(-length // _BLOCK))[None]
    parts = (tables_BC, [0, num_new], [length], *list_tiles([num_new], tile_tokens))
    tensors = (torch.as_tensor(part, dtype=torch.int32, device=DEVICE) for part in parts)
    return PagedBatch(*tensors, tile_tokens=tile_tokens)


def _attend_by_torch(q_TNH: Tensor, kv_TE: Tensor) -> Tensor:
    """A whole prompt, whose keys and values lie one behind the other."""
    k_TKH, v_TKH = kv_TE.view(-1, 2, _KV_HEADS, _HEAD_DIM).unbind(1)
    q, k, v = (part.transpose(0, 1)[None] for part in (q_TNH, k_TKH, v_TKH))
    return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
