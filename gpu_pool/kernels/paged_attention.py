"""Paged causal attention of a mixed batch on a GPU: chunks of prompts and single tokens alike.

out = softmax(q · Kᵀ · scale) · V over each sequence's blocks, keys up to the query's own position
and, with a window, not further back than it reaches; a soft cap c turns scores s into c·tanh(s/c).
All query heads of a KV head and a few tokens make one tile of rows, so that keys and values are
read once for all of them. A work list names the tiles, so that the grid does not depend on who is
in the batch beyond their number.
Shapes: T tokens of the step, N query heads, K KV heads, H head dim, B sequences, C blocks of the
longest table, W tiles, X slots of KV memory (one per block, layer and token; E = 2 · K · H).
Takes bf16, fp16 or fp32, fp32 accumulation.
Source: Dao 2023 (FlashAttention-2); Kwon et al. 2023 (paged KV).
Read next: `paged_launch`, `split_decode`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_pool.kernels.fp8_slots import (
    Fp8Slots,
    check_slots,
    describe_slots,
    load_scales,
    read_slots,
    view_scales,
    widen,
    widens_itself,
)
from gpu_pool.kernels.gpu_traits import find_traits
from gpu_pool.kernels.paged_launch import (
    TileLaunch,
    choose_paged_attention_launch,
    choose_tile_rows,
)
from gpu_pool.kernels.triton_language import jit, next_power_of_2, tl, uses_triton


@dataclass(frozen=True, slots=True)
class PagedLayout:
    """Where a layer's keys and values lie, and how it attends.

    A slot is `(block · num_layers + layer) · S + offset`.
    """

    layer: int
    num_layers: int
    block_size: int
    num_kv_heads: int
    scale: float
    window: int = 0
    """Tokens that a query sees, itself included; 0 is all of them."""
    is_chunked: bool = False
    """The window does not slide: a query sees its own chunk of so many tokens, up to itself."""
    soft_cap: float = 0.0
    """0 leaves scores as they are."""
    sinks_N: Tensor | None = None
    """A score per query head, fp32, that takes weight and gives nothing."""
    fp8: Fp8Slots | None = None
    """How slots of eight bits an element are made; None: they hold elements alone."""


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """Who attends to what, as int32 tensors on the device.

    Query tokens of sequence b are rows `starts_B[b]` to `starts_B[b + 1]` of q and the last of the
    `lengths_B[b]` tokens of its context.
    """

    tables_BC: Tensor
    starts_B: Tensor
    """One more than there are sequences."""
    lengths_B: Tensor
    tile_sequences_W: Tensor
    tile_firsts_W: Tensor
    """The first token of each tile, counted from its sequence's first row."""
    tile_tokens: int
    """Query tokens of a tile."""


def find_tile_rows(q_TNH: Tensor, layout: PagedLayout) -> int:
    """Rows of a full tile for these queries."""
    is_fp8 = layout.fp8 is not None
    return choose_tile_rows(
        find_traits(q_TNH.device), q_TNH.shape[2], q_TNH.itemsize, is_fp8=is_fp8
    )


def choose_tile_tokens(num_shared: int, longest_chunk: int, most_rows: int = 64) -> int:
    """Query tokens per tile such that the rows of all heads fill a product of 16 rows at least
    and `most_rows` at most.
    """
    rows = 16 if longest_chunk == 1 else most_rows
    return max(1, min(rows // next_power_of_2(num_shared), next_power_of_2(longest_chunk)))


def list_tiles(num_tokens: list[int], tile_tokens: int) -> tuple[list[int], list[int]]:
    """Sequence and first token of every tile, for sequences with `num_tokens` new tokens."""
    sequences: list[int] = []
    firsts: list[int] = []
    for sequence, count in enumerate(num_tokens):
        found = range(0, count, tile_tokens)
        sequences.extend([sequence] * len(found))
        firsts.extend(found)
    return sequences, firsts


def paged_attention_reference(
    q_TNH: Tensor, slots_XE: Tensor, batch: PagedBatch, layout: PagedLayout
) -> Tensor:
    """The mixed values `[T, N, H]`, in plain torch, one sequence after the other."""
    num_heads, head_dim = q_TNH.shape[1:]
    num_shared = num_heads // layout.num_kv_heads
    out_TNH = torch.empty_like(q_TNH)
    bounds = batch.starts_B.tolist()
    for sequence, length in enumerate(batch.lengths_B.tolist()):
        first, end = bounds[sequence], bounds[sequence + 1]
        positions_L = torch.arange(length, device=q_TNH.device)
        blocks_L = batch.tables_BC[sequence].long()[positions_L // layout.block_size]
        slots_L = (blocks_L * layout.num_layers + layout.layer) * layout.block_size
        slots_LE = slots_XE[slots_L + positions_L % layout.block_size]
        kv = read_slots(slots_LE, layout.fp8, torch.float32)
        kv_L2NH = kv.view(length, 2, layout.num_kv_heads, head_dim).repeat_interleave(num_shared, 2)
        scores_NTL = torch.einsum("tnh,lnh->ntl", q_TNH[first:end].float(), kv_L2NH[:, 0].float())
        scores_NTL *= layout.scale
        if layout.soft_cap:
            scores_NTL = layout.soft_cap * torch.tanh(scores_NTL / layout.soft_cap)
        distance_TL = positions_L[length - (end - first) :, None] - positions_L
        is_hidden_TL = distance_TL < 0
        if layout.window:
            is_hidden_TL |= positions_L < find_first_position(
                positions_L[length - (end - first) :, None], layout
            )
        weights_NTL = softmax_with_sinks(
            scores_NTL.masked_fill_(is_hidden_TL, float("-inf")), layout.sinks_N
        )
        out = torch.einsum("ntl,lnh->tnh", weights_NTL, kv_L2NH[:, 1].float())
        out_TNH[first:end] = out.to(q_TNH.dtype)
    return out_TNH


def softmax_with_sinks(scores_NTL: Tensor, sinks_N: Tensor | None) -> Tensor:
    """Weights over the keys; a sink's share is left out."""
    if sinks_N is None:
        return scores_NTL.softmax(-1)
    column_NT1 = sinks_N[:, None, None].expand(*scores_NTL.shape[:2], 1)
    return torch.cat((scores_NTL, column_NT1), -1).softmax(-1)[..., :-1]


def find_first_position(positions: Tensor, layout: PagedLayout) -> Tensor:
    """The first position that a query at each of `positions` sees, of a layout with a window."""
    if layout.is_chunked:
        return positions - positions % layout.window
    return (positions - layout.window + 1).clamp_min(0)


@jit
def _tanh(x):
    """The hyperbolic tangent, which triton's language lacks."""
    shrunk = tl.exp(-2.0 * tl.abs(x))
    size = (1.0 - shrunk) / (1.0 + shrunk)
    return tl.where(x < 0, -size, size)


@jit
def locate_slots(table_ptr, keys, is_key, layer, num_layers, BLOCK_SIZE: tl.constexpr):
    """The slots of a sequence's keys."""
    blocks = tl.load(table_ptr + keys // BLOCK_SIZE, mask=is_key, other=0).to(tl.int64)
    return (blocks * num_layers + layer) * BLOCK_SIZE + keys % BLOCK_SIZE


@jit
def load_kv(
    memory,
    slots,
    is_key,
    dims,
    kv_head,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    SLOT: tl.constexpr,
    SCALE_OFFSET: tl.constexpr,
    HAS_FP8: tl.constexpr,
):
    """Keys and values of one head, and what each of them is to be multiplied by.

    `memory` is where slots lie, and the same as fp32.
    """
    slots_ptr, scales_ptr = memory
    kv_ptr = slots_ptr + (slots * SLOT + kv_head * HEAD_DIM)[:, None] + dims[None, :]
    is_kv = is_key[:, None] & (dims < HEAD_DIM)[None, :]
    k = tl.load(kv_ptr, mask=is_kv, other=0)
    v = tl.load(kv_ptr + KV_HEADS * HEAD_DIM, mask=is_kv, other=0)
    k_scales = 1.0
    v_scales = 1.0
    if SCALE_OFFSET > 0:
        k = widen(k, HAS_FP8)
        v = widen(v, HAS_FP8)
        places = slots * (SLOT // 4) + SCALE_OFFSET // 4 + kv_head
        k_scales = load_scales(scales_ptr, places, is_key, HAS_FP8)[None, :]
        v_scales = load_scales(scales_ptr, places + KV_HEADS, is_key, HAS_FP8)[None, :]
    return k, v, k_scales, v_scales


@jit
def start_softmax(sinks_ptr, heads, is_row, HAS_SINKS: tl.constexpr, ROWS: tl.constexpr):
    """Largest score (in powers of two) and sum of weights before any key: a sink's or none."""
    if HAS_SINKS:
        best = tl.load(sinks_ptr + heads, mask=is_row, other=0.0) * 1.4426950408889634
        total = tl.full([ROWS], 1.0, tl.float32)
    else:
        best = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
    return best, total


@jit
def find_first(positions, window, IS_CHUNKED: tl.constexpr):
    """The first position that a query sees; without a window (0) the very first."""
    if IS_CHUNKED:
        first = positions - positions % tl.maximum(window, 1)
    else:
        first = tl.maximum(positions - window + 1, 0)
    return tl.where(window > 0, first, 0)


@jit
def mix_keys(
    q,
    kv,
    is_seen,
    best,
    total,
    mixed,
    scale,
    soft_cap,
    HAS_CAP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One step of an online softmax: largest score, sum of weights and mixed values so far."""
    k, v, k_scales, v_scales = kv
    scores = tl.dot(q, tl.trans(k.to(q.dtype)), input_precision=PRECISION) * k_scales
    # log2 e: largest scores and weights count in powers of two.
    factor = 1.4426950408889634
    if HAS_CAP:
        scores = soft_cap * _tanh(scores * (scale / soft_cap))
    else:
        factor = scale * factor
    scores = tl.where(is_seen, scores, float("-inf"))
    new_best = tl.maximum(best, tl.max(scores, 1) * factor)
    # Rows that have seen nothing yet keep a base of 0, since -inf minus -inf is NaN.
    base = tl.where(new_best == float("-inf"), 0.0, new_best)
    weights = tl.exp2(scores * factor - base[:, None])
    shrink = tl.exp2(best - base)
    total = total * shrink + tl.sum(weights, 1)
    mixed = mixed * shrink[:, None]
    weighed = (weights * v_scales).to(q.dtype)
    mixed += tl.dot(weighed, v.to(q.dtype), input_precision=PRECISION)
    return new_best, total, mixed


@jit
def _paged_attention_kernel(
    q_ptr,
    slots_ptr,
    scales_ptr,
    out_ptr,
    tables_ptr,
    starts_ptr,
    lengths_ptr,
    tile_sequences_ptr,
    tile_firsts_ptr,
    sinks_ptr,
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
    TILE_TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    IS_CHUNKED: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    SLOT: tl.constexpr,
    SCALE_OFFSET: tl.constexpr,
    HAS_FP8: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One tile of query rows of one KV head per program, online softmax over stretches of keys."""
    SHARED: tl.constexpr = HEADS // KV_HEADS
    tile = tl.num_programs(0) - 1 - tl.program_id(0)  # those with the most keys come first
    kv_head = tl.program_id(1)
    sequence = tl.load(tile_sequences_ptr + tile)
    first = tl.load(tile_firsts_ptr + tile)
    start = tl.load(starts_ptr + sequence)
    num_new = tl.load(starts_ptr + sequence + 1) - start
    length = tl.load(lengths_ptr + sequence)

    rows = tl.arange(0, ROWS)
    tokens = first + rows // SHARED
    heads = kv_head * SHARED + rows % SHARED
    is_row = (rows < TILE_TOKENS * SHARED) & (tokens < num_new)
    positions = length - num_new + tokens
    dims = tl.arange(0, PADDED_DIM)
    is_dim = dims < HEAD_DIM
    is_q = is_row[:, None] & is_dim[None, :]
    row_offsets = (start + tokens).to(tl.int64) * q_stride + heads * HEAD_DIM
    q = tl.load(q_ptr + row_offsets[:, None] + dims[None, :], mask=is_q, other=0.0)

    memory = (slots_ptr, scales_ptr)
    table_ptr = tables_ptr + sequence.to(tl.int64) * table_stride
    best, total = start_softmax(sinks_ptr, heads, is_row, HAS_SINKS, ROWS)
    mixed = tl.zeros([ROWS, PADDED_DIM], tl.float32)
    first_position = length - num_new + first
    oldest = find_first(positions, window, IS_CHUNKED)
    seen_end = tl.minimum(length, first_position + TILE_TOKENS)
    seen_start = find_first(first_position, window, IS_CHUNKED) // KEYS * KEYS
    for key_start in range(seen_start, seen_end, KEYS):
        keys = key_start + tl.arange(0, KEYS)
        is_key = keys < seen_end
        slots = locate_slots(table_ptr, keys, is_key, layer, num_layers, BLOCK_SIZE)
        kv = load_kv(
            memory, slots, is_key, dims, kv_head, KV_HEADS, HEAD_DIM, SLOT, SCALE_OFFSET, HAS_FP8
        )
        is_seen = (keys[None, :] <= positions[:, None]) & is_key[None, :]
        is_seen = is_seen & (keys[None, :] >= oldest[:, None])
        best, total, mixed = mix_keys(
            q, kv, is_seen, best, total, mixed, scale, soft_cap, HAS_CAP, PRECISION
        )
    out = (mixed / tl.where(total == 0.0, 1.0, total)[:, None]).to(out_ptr.dtype.element_ty)
    out_offsets = (start + tokens).to(tl.int64) * (HEADS * HEAD_DIM) + heads * HEAD_DIM
    tl.store(out_ptr + out_offsets[:, None] + dims[None, :], out, mask=is_q)


def paged_attention_triton(
    q_TNH: Tensor,
    slots_XE: Tensor,
    batch: PagedBatch,
    layout: PagedLayout,
    launch: TileLaunch | None = None,
) -> Tensor:
    """The mixed values `[T, N, H]`, by triton; only the heads of a row of q must lie together.

    `launch` is chosen by shape unless it is given.
    """
    num_heads, head_dim = q_TNH.shape[1:]
    assert q_TNH.stride(1) == head_dim, "the heads of a token lie apart"
    num_shared = num_heads // layout.num_kv_heads
    rows = max(16, next_power_of_2(batch.tile_tokens * num_shared))
    padded_dim = max(16, next_power_of_2(head_dim))
    launch = launch or choose_paged_attention_launch(
        find_traits(q_TNH.device), rows, padded_dim, q_TNH.element_size()
    )
    out_TNH = torch.empty(q_TNH.shape, dtype=q_TNH.dtype, device=q_TNH.device)
    grid = (batch.tile_sequences_W.shape[0], layout.num_kv_heads)
    _paged_attention_kernel[grid](
        q_TNH,
        slots_XE,
        view_scales(slots_XE, layout.fp8),
        out_TNH,
        batch.tables_BC,
        batch.starts_B,
        batch.lengths_B,
        batch.tile_sequences_W,
        batch.tile_firsts_W,
        layout.sinks_N,
        q_TNH.stride(0),
        batch.tables_BC.stride(0),
        layout.layer,
        layout.num_layers,
        layout.scale,
        layout.soft_cap,
        layout.window,
        HEADS=num_heads,
        KV_HEADS=layout.num_kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=layout.block_size,
        TILE_TOKENS=batch.tile_tokens,
        ROWS=rows,
        KEYS=launch.keys,
        PADDED_DIM=padded_dim,
        IS_CHUNKED=layout.is_chunked,
        HAS_CAP=layout.soft_cap > 0,
        HAS_SINKS=layout.sinks_N is not None,
        HAS_FP8=widens_itself(q_TNH.device),
        **describe_slots(layout.fp8, slots_XE.shape[1]),
        PRECISION="ieee" if q_TNH.dtype == torch.float32 else "tf32",
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )
    return out_TNH


def paged_attention(
    q_TNH: Tensor, slots_XE: Tensor, batch: PagedBatch, layout: PagedLayout
) -> Tensor:
    """The mixed values `[T, N, H]` of all tokens of a step, whose KV is in its slots already."""
    assert q_TNH.shape[1] % layout.num_kv_heads == 0, "N is no multiple of K"
    check_slots(slots_XE, 2 * layout.num_kv_heads * q_TNH.shape[2], layout.fp8)
    if uses_triton(q_TNH):
        return paged_attention_triton(q_TNH, slots_XE, batch, layout)
    return paged_attention_reference(q_TNH, slots_XE, batch, layout)
