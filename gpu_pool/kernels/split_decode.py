"""Paged attention of single tokens on a GPU, long contexts cut into splits that run side by side.

One sequence alone cannot fill a GPU: its context is cut into splits of a fixed number of keys, each
mixed by a program of its own, and a second kernel joins them by their softmax weights. Where a
context is cut depends on positions alone, never on the batch, so that a sequence's result does not
change with its neighbours. The grid covers the longest context that the caller names, so that one
captured graph serves every shorter one: programs behind a context's end leave at once.
Shapes: B sequences, N query heads, K KV heads, H head dim, Z splits; slots as in `paged_attention`.
Takes bf16, fp16 or fp32, fp32 accumulation. Source: Dao et al. 2023 (Flash-Decoding).
"""

from __future__ import annotations

import torch
from torch import Tensor

from gpu_pool.kernels.paged_attention import (
    PagedLayout,
    find_first,
    locate_keys,
    mix_keys,
    softmax_with_sinks,
    start_softmax,
)
from gpu_pool.kernels.triton_language import jit, next_power_of_2, tl, uses_triton

SPLIT_KEYS = 512
"""Keys of a split, a multiple of `KEYS`."""
KEYS = 64
"""Keys of one product."""


def split_decode_reference(
    q_BNH: Tensor, slots_XE: Tensor, tables_BC: Tensor, lengths_B: Tensor, layout: PagedLayout
) -> Tensor:
    """The mixed values `[B, N, H]`, in plain torch, one sequence after the other."""
    num_heads, head_dim = q_BNH.shape[1:]
    num_shared = num_heads // layout.num_kv_heads
    out_BNH = torch.empty_like(q_BNH)
    for sequence, length in enumerate(lengths_B.tolist()):
        start = _find_start(length, layout)
        positions_L = torch.arange(start, length, device=q_BNH.device)
        blocks_L = tables_BC[sequence].long()[positions_L // layout.block_size]
        slots_L = (blocks_L * layout.num_layers + layout.layer) * layout.block_size
        kv = slots_XE[slots_L + positions_L % layout.block_size].float()
        kv_L2KH = kv.view(-1, 2, layout.num_kv_heads, head_dim)
        q_KGH = q_BNH[sequence].float().view(layout.num_kv_heads, num_shared, head_dim)
        scores_KGL = torch.einsum("kgh,lkh->kgl", q_KGH, kv_L2KH[:, 0]) * layout.scale
        if layout.soft_cap:
            scores_KGL = layout.soft_cap * torch.tanh(scores_KGL / layout.soft_cap)
        weights_NTL = softmax_with_sinks(scores_KGL.view(num_heads, 1, -1), layout.sinks_N)
        mixed_KGH = torch.einsum("kgl,lkh->kgh", weights_NTL.view(scores_KGL.shape), kv_L2KH[:, 1])
        out_BNH[sequence] = mixed_KGH.reshape(num_heads, head_dim).to(q_BNH.dtype)
    return out_BNH


def _find_start(length: int, layout: PagedLayout) -> int:
    """The first position that the last token of a context sees."""
    if not layout.window:
        return 0
    if layout.is_chunked:
        return (length - 1) - (length - 1) % layout.window
    return max(0, length - layout.window)


@jit
def _split_decode_kernel(
    q_ptr,
    slots_ptr,
    mixed_ptr,
    best_ptr,
    total_ptr,
    tables_ptr,
    lengths_ptr,
    q_stride,
    table_stride,
    layer,
    num_layers,
    scale,
    soft_cap,
    window,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SPLITS: tl.constexpr,
    SPLIT_KEYS: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    IS_CHUNKED: tl.constexpr,
    HAS_CAP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One split of one sequence and KV head per program; rows are the query heads that share it."""
    SHARED: tl.constexpr = HEADS // KV_HEADS
    ELEMENTS: tl.constexpr = 2 * KV_HEADS * HEAD_DIM
    sequence = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    length = tl.load(lengths_ptr + sequence)
    seen_start = find_first(length - 1, window, IS_CHUNKED)
    first = split * SPLIT_KEYS
    end = tl.minimum(first + SPLIT_KEYS, length)
    if (end <= first) | (end <= seen_start):
        return
    rows = tl.arange(0, ROWS)
    is_row = rows < SHARED
    dims = tl.arange(0, PADDED_DIM)
    is_dim = dims < HEAD_DIM
    heads = kv_head * SHARED + rows
    q = tl.load(
        q_ptr + sequence * q_stride + heads[:, None] * HEAD_DIM + dims[None, :],
        mask=is_row[:, None] & is_dim[None, :],
        other=0.0,
    )
    table_ptr = tables_ptr + sequence * table_stride
    best, total = start_softmax(lengths_ptr, heads, is_row, False, ROWS)  # sinks join at the end
    mixed = tl.zeros([ROWS, PADDED_DIM], tl.float32)
    for key_start in range(tl.maximum(first, seen_start // KEYS * KEYS), end, KEYS):
        keys = key_start + tl.arange(0, KEYS)
        is_key = (keys < end) & (keys >= seen_start)
        offsets = locate_keys(table_ptr, keys, is_key, layer, num_layers, BLOCK_SIZE, ELEMENTS)
        kv_ptr = slots_ptr + (offsets + kv_head * HEAD_DIM)[:, None] + dims[None, :]
        is_kv = is_key[:, None] & is_dim[None, :]
        k = tl.load(kv_ptr, mask=is_kv, other=0.0)
        v = tl.load(kv_ptr + KV_HEADS * HEAD_DIM, mask=is_kv, other=0.0)
        best, total, mixed = mix_keys(
            q, k, v, is_key[None, :], best, total, mixed, scale, soft_cap, HAS_CAP, PRECISION
        )
    parts = (sequence * HEADS + heads) * SPLITS + split
    tl.store(best_ptr + parts, best, mask=is_row)
    tl.store(total_ptr + parts, total, mask=is_row)
    tl.store(
        mixed_ptr + parts[:, None] * HEAD_DIM + dims[None, :],
        mixed,
        mask=is_row[:, None] & is_dim[None, :],
    )


@jit
def _join_splits_kernel(
    mixed_ptr,
    best_ptr,
    total_ptr,
    lengths_ptr,
    sinks_ptr,
    out_ptr,
    window,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    SPLITS: tl.constexpr,
    SPLIT_KEYS: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    IS_CHUNKED: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):
    """One head of one sequence per program; splits join in their order, the same every time."""
    sequence = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    length = tl.load(lengths_ptr + sequence)
    seen_start = find_first(length - 1, window, IS_CHUNKED)
    dims = tl.arange(0, PADDED_DIM)
    is_dim = dims < HEAD_DIM
    first_part = (sequence * HEADS + head) * SPLITS
    if HAS_SINKS:
        best = tl.load(sinks_ptr + head) * 1.4426950408889634
        total = 1.0
    else:
        best = float("-inf")
        total = 0.0
    mixed = tl.zeros([PADDED_DIM], tl.float32)
    for split in range(seen_start // SPLIT_KEYS, tl.cdiv(length, SPLIT_KEYS)):
        part_best = tl.load(best_ptr + first_part + split)
        part = tl.load(mixed_ptr + (first_part + split) * HEAD_DIM + dims, mask=is_dim, other=0.0)
        new_best = tl.maximum(best, part_best)
        shrink = tl.exp2(best - new_best)
        weight = tl.exp2(part_best - new_best)
        total = total * shrink + tl.load(total_ptr + first_part + split) * weight
        mixed = mixed * shrink + part * weight
        best = new_best
    out = mixed / tl.where(total == 0.0, 1.0, total)
    tl.store(
        out_ptr + (sequence * HEADS + head) * HEAD_DIM + dims,
        out.to(out_ptr.dtype.element_ty),
        mask=is_dim,
    )


def split_decode_triton(
    q_BNH: Tensor,
    slots_XE: Tensor,
    tables_BC: Tensor,
    lengths_B: Tensor,
    layout: PagedLayout,
    max_length: int,
) -> Tensor:
    """The mixed values `[B, N, H]`, by triton; no length is above `max_length`."""
    batch_size, num_heads, head_dim = q_BNH.shape
    assert q_BNH.stride(1) == head_dim, "the heads of a token lie apart"
    num_splits = -(-max_length // SPLIT_KEYS)
    padded_dim = max(16, next_power_of_2(head_dim))
    parts = (batch_size, num_heads, num_splits)
    mixed = torch.empty((*parts, head_dim), dtype=torch.float32, device=q_BNH.device)
    best = torch.empty(parts, dtype=torch.float32, device=q_BNH.device)
    total = torch.empty_like(best)
    out_BNH = torch.empty(q_BNH.shape, dtype=q_BNH.dtype, device=q_BNH.device)
    _split_decode_kernel[(batch_size, layout.num_kv_heads, num_splits)](
        q_BNH,
        slots_XE,
        mixed,
        best,
        total,
        tables_BC,
        lengths_B,
        q_BNH.stride(0),
        tables_BC.stride(0),
        layout.layer,
        layout.num_layers,
        layout.scale,
        layout.soft_cap,
        layout.window,
        HEADS=num_heads,
        KV_HEADS=layout.num_kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=layout.block_size,
        SPLITS=num_splits,
        SPLIT_KEYS=SPLIT_KEYS,
        ROWS=max(16, next_power_of_2(num_heads // layout.num_kv_heads)),
        KEYS=KEYS,
        PADDED_DIM=padded_dim,
        IS_CHUNKED=layout.is_chunked,
        HAS_CAP=layout.soft_cap > 0,
        PRECISION="ieee" if q_BNH.dtype == torch.float32 else "tf32",
        num_warps=4,
        num_stages=3,
    )
    _join_splits_kernel[(batch_size, num_heads)](
        mixed,
        best,
        total,
        lengths_B,
        layout.sinks_N,
        out_BNH,
        layout.window,
        HEADS=num_heads,
        HEAD_DIM=head_dim,
        SPLITS=num_splits,
        SPLIT_KEYS=SPLIT_KEYS,
        PADDED_DIM=padded_dim,
        IS_CHUNKED=layout.is_chunked,
        HAS_SINKS=layout.sinks_N is not None,
        num_warps=2,
    )
    return out_BNH


def split_decode(
    q_BNH: Tensor,
    slots_XE: Tensor,
    tables_BC: Tensor,
    lengths_B: Tensor,
    layout: PagedLayout,
    max_length: int,
) -> Tensor:
    """The mixed values `[B, N, H]` of the last token of each context, whose KV is in its slot."""
    assert q_BNH.shape[1] % layout.num_kv_heads == 0, "N is no multiple of K"
    assert tables_BC.shape[0] == lengths_B.shape[0] == q_BNH.shape[0], "arguments disagree on B"
    if uses_triton(q_BNH):
        return split_decode_triton(q_BNH, slots_XE, tables_BC, lengths_B, layout, max_length)
    return split_decode_reference(q_BNH, slots_XE, tables_BC, lengths_B, layout)
