"""Paged causal attention over latents on a GPU: one vector per token is key and value of all heads.

out = softmax(q · latentᵀ · scale) · latent[:V] over each sequence's blocks, keys up to the query's
own position. A tile of rows is some heads of some tokens; each latent is loaded once for both
products, values and the rest (the turned part of the keys) apart, as tiles are powers of two.
Shapes: T tokens of the step, N query heads, H latent with its turned part, V values, W tiles, X
slots (E = H); tables and work lists as in `paged_attention`. No soft cap and no sinks: no family
has them here. Takes bf16, fp16 or fp32, fp32 accumulation.
Source: DeepSeek-V2 (absorbed products). Read next: `latent_decode`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_pool.kernels.fp8_slots import (
    check_slots,
    describe_slots,
    load_scales,
    read_slots,
    view_scales,
    widen,
    widens_itself,
)
from gpu_pool.kernels.gpu_traits import GpuTraits, find_traits
from gpu_pool.kernels.paged_attention import (
    PagedBatch,
    PagedLayout,
    find_first,
    find_first_position,
    locate_slots,
)
from gpu_pool.kernels.triton_language import jit, next_power_of_2, tl, uses_triton

_SMALL_SHARED_BYTES = 99 << 10
_LARGE_SHARED_BYTES = 200 << 10


@dataclass(frozen=True, slots=True)
class LatentLaunch:
    """How a kernel over latents is launched; `rows` and `keys` of one product."""

    rows: int
    keys: int
    num_warps: int
    num_stages: int


def choose_latent_launch(
    traits: GpuTraits, num_rows: int, value_dim: int, itemsize: int, *, is_fp8: bool = False
) -> LatentLaunch:
    """Rows as far as their sums fit registers; latents in two buffers where there is room.

    `itemsize` is the queries'; `is_fp8` says that latents have to be widened, in registers.
    """
    num_warps = 8 if value_dim > 128 else 4
    if itemsize > 2:
        return LatentLaunch(16, 16, num_warps, 3)
    is_large = traits.shared_bytes >= _LARGE_SHARED_BYTES
    most_rows = 64 if is_large and not is_fp8 else 32
    keys = 16 if is_fp8 else 32
    rows = max(16, min(most_rows, next_power_of_2(num_rows)))
    num_stages = 5 if traits.shared_bytes > _SMALL_SHARED_BYTES else 3
    return LatentLaunch(rows, keys, num_warps, num_stages)


def latent_attention_reference(
    q_TNH: Tensor, slots_XE: Tensor, batch: PagedBatch, layout: PagedLayout, value_dim: int
) -> Tensor:
    """The mixed latents `[T, N, V]`, in plain torch, one sequence after the other."""
    out_TNV = torch.empty((*q_TNH.shape[:2], value_dim), dtype=q_TNH.dtype, device=q_TNH.device)
    bounds = batch.starts_B.tolist()
    for sequence, length in enumerate(batch.lengths_B.tolist()):
        first, end = bounds[sequence], bounds[sequence + 1]
        positions_L = torch.arange(length, device=q_TNH.device)
        latents_LH = gather_latents(slots_XE, batch.tables_BC[sequence], positions_L, layout)
        queries_T1 = positions_L[length - (end - first) :, None]
        is_hidden_TL = positions_L > queries_T1
        if layout.window:
            is_hidden_TL |= positions_L < find_first_position(queries_T1, layout)
        scores_NTL = torch.einsum("tnh,lh->ntl", q_TNH[first:end].float(), latents_LH)
        scores_NTL = (scores_NTL * layout.scale).masked_fill_(is_hidden_TL, float("-inf"))
        mixed_TNV = torch.einsum("ntl,lv->tnv", scores_NTL.softmax(-1), latents_LH[:, :value_dim])
        out_TNV[first:end] = mixed_TNV.to(q_TNH.dtype)
    return out_TNV


def gather_latents(
    slots_XE: Tensor, table_C: Tensor, positions_L: Tensor, layout: PagedLayout
) -> Tensor:
    """The latents of one sequence at `positions_L`, in fp32, `[L, H]`."""
    blocks_L = table_C.long()[positions_L // layout.block_size]
    slots_L = (blocks_L * layout.num_layers + layout.layer) * layout.block_size
    slots_LE = slots_XE[slots_L + positions_L % layout.block_size]
    return read_slots(slots_LE, layout.fp8, torch.float32)


@jit
def load_latents(
    rows_ptr,
    is_row,
    VALUE_DIM: tl.constexpr,
    REST_DIM: tl.constexpr,
    VALUES: tl.constexpr,
    REST: tl.constexpr,
):
    """Values and the rest of vectors that begin at `rows_ptr`, a column; zeros where is none."""
    values = tl.arange(0, VALUES)[None, :]
    rest = tl.arange(0, REST)[None, :]
    is_row = is_row[:, None]
    return (
        tl.load(rows_ptr + values, mask=is_row & (values < VALUE_DIM), other=0),
        tl.load(rows_ptr + VALUE_DIM + rest, mask=is_row & (rest < REST_DIM), other=0),
    )


@jit
def load_slots(
    memory,
    slots,
    is_key,
    VALUE_DIM: tl.constexpr,
    REST_DIM: tl.constexpr,
    VALUES: tl.constexpr,
    REST: tl.constexpr,
    SLOT: tl.constexpr,
    SCALE_OFFSET: tl.constexpr,
    HAS_FP8: tl.constexpr,
):
    """Values and the rest of latents, and what they are to be multiplied by.

    `memory` is where slots lie, and the same as fp32.
    """
    slots_ptr, scales_ptr = memory
    rows_ptr = slots_ptr + (slots * SLOT)[:, None]
    values, rest = load_latents(rows_ptr, is_key, VALUE_DIM, REST_DIM, VALUES, REST)
    scales = 1.0
    if SCALE_OFFSET > 0:
        values = widen(values, HAS_FP8)
        rest = widen(rest, HAS_FP8)
        places = slots * (SLOT // 4) + SCALE_OFFSET // 4
        scales = load_scales(scales_ptr, places, is_key, HAS_FP8)[None, :]
    return values, rest, scales


@jit
def mix_latents(
    q,
    latents,
    is_seen,
    best,
    total,
    mixed,
    scale,
    PRECISION: tl.constexpr,
):
    """One step of an online softmax, in which values are keys, too."""
    q_values, q_rest = q
    values, rest, scales = latents
    values = values.to(q_values.dtype)
    rest = rest.to(q_values.dtype)
    scores = tl.dot(q_values, tl.trans(values), input_precision=PRECISION)
    scores += tl.dot(q_rest, tl.trans(rest), input_precision=PRECISION)
    # log2 e: from here on scores count in powers of two.
    scores = tl.where(is_seen, scores * (scale * 1.4426950408889634 * scales), float("-inf"))
    new_best = tl.maximum(best, tl.max(scores, 1))
    # Rows that have seen nothing yet keep a base of 0, since -inf minus -inf is NaN.
    base = tl.where(new_best == float("-inf"), 0.0, new_best)
    weights = tl.exp2(scores - base[:, None])
    shrink = tl.exp2(best - base)
    total = total * shrink + tl.sum(weights, 1)
    mixed = mixed * shrink[:, None]
    weighed = (weights * scales).to(values.dtype)
    mixed += tl.dot(weighed, values, input_precision=PRECISION)
    return new_best, total, mixed


@jit
def _latent_attention_kernel(
    q_ptr,
    slots_ptr,
    scales_ptr,
    out_ptr,
    tables_ptr,
    starts_ptr,
    lengths_ptr,
    tile_sequences_ptr,
    tile_firsts_ptr,
    q_stride,
    table_stride,
    layer,
    num_layers,
    scale,
    window,
    HEADS: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    REST_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    REST: tl.constexpr,
    IS_CHUNKED: tl.constexpr,
    SLOT: tl.constexpr,
    SCALE_OFFSET: tl.constexpr,
    HAS_FP8: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Some rows of a tile per program, online softmax over stretches of latents."""
    HEAD_DIM: tl.constexpr = VALUE_DIM + REST_DIM
    tile = tl.program_id(0)
    sequence = tl.load(tile_sequences_ptr + tile)
    first = tl.load(tile_firsts_ptr + tile)
    start = tl.load(starts_ptr + sequence)
    num_new = tl.load(starts_ptr + sequence + 1) - start
    length = tl.load(lengths_ptr + sequence)

    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    tokens = first + rows // HEADS
    heads = rows % HEADS
    is_row = (rows < TILE_TOKENS * HEADS) & (tokens < num_new)
    positions = length - num_new + tokens
    values = tl.arange(0, VALUES)
    is_value = values < VALUE_DIM
    q_rows_ptr = q_ptr + ((start + tokens).to(tl.int64) * q_stride + heads * HEAD_DIM)[:, None]
    q = load_latents(q_rows_ptr, is_row, VALUE_DIM, REST_DIM, VALUES, REST)

    memory = (slots_ptr, scales_ptr)
    table_ptr = tables_ptr + sequence.to(tl.int64) * table_stride
    best = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, VALUES], tl.float32)
    first_position = length - num_new + first
    oldest = find_first(positions, window, IS_CHUNKED)
    seen_end = tl.minimum(length, first_position + TILE_TOKENS)
    seen_start = find_first(first_position, window, IS_CHUNKED) // KEYS * KEYS
    for key_start in range(seen_start, seen_end, KEYS):
        keys = key_start + tl.arange(0, KEYS)
        is_key = keys < seen_end
        slots = locate_slots(table_ptr, keys, is_key, layer, num_layers, BLOCK_SIZE)
        latents = load_slots(
            memory, slots, is_key, VALUE_DIM, REST_DIM, VALUES, REST, SLOT, SCALE_OFFSET, HAS_FP8
        )
        is_seen = (keys[None, :] <= positions[:, None]) & is_key[None, :]
        is_seen = is_seen & (keys[None, :] >= oldest[:, None])
        best, total, mixed = mix_latents(q, latents, is_seen, best, total, mixed, scale, PRECISION)
    out = (mixed / tl.where(total == 0.0, 1.0, total)[:, None]).to(out_ptr.dtype.element_ty)
    out_offsets = (start + tokens).to(tl.int64) * (HEADS * VALUE_DIM) + heads * VALUE_DIM
    tl.store(
        out_ptr + out_offsets[:, None] + values[None, :],
        out,
        mask=is_row[:, None] & is_value[None, :],
    )


def latent_attention_triton(
    q_TNH: Tensor, slots_XE: Tensor, batch: PagedBatch, layout: PagedLayout, value_dim: int
) -> Tensor:
    """The mixed latents `[T, N, V]`, by triton; only the heads of a row of q must lie together."""
    num_tokens, num_heads, head_dim = q_TNH.shape
    assert q_TNH.stride(1) == head_dim, "the heads of a token lie apart"
    launch = choose_latent_launch(
        find_traits(q_TNH.device),
        batch.tile_tokens * num_heads,
        value_dim,
        q_TNH.element_size(),
        is_fp8=layout.fp8 is not None,
    )
    out_TNV = torch.empty(
        (num_tokens, num_heads, value_dim), dtype=q_TNH.dtype, device=q_TNH.device
    )
    num_row_tiles = -(-batch.tile_tokens * num_heads // launch.rows)
    _latent_attention_kernel[(batch.tile_sequences_W.shape[0], num_row_tiles)](
        q_TNH,
        slots_XE,
        view_scales(slots_XE, layout.fp8),
        out_TNV,
        batch.tables_BC,
        batch.starts_B,
        batch.lengths_B,
        batch.tile_sequences_W,
        batch.tile_firsts_W,
        q_TNH.stride(0),
        batch.tables_BC.stride(0),
        layout.layer,
        layout.num_layers,
        layout.scale,
        layout.window,
        HEADS=num_heads,
        VALUE_DIM=value_dim,
        REST_DIM=head_dim - value_dim,
        BLOCK_SIZE=layout.block_size,
        TILE_TOKENS=batch.tile_tokens,
        ROWS=launch.rows,
        KEYS=launch.keys,
        VALUES=max(16, next_power_of_2(value_dim)),
        REST=max(16, next_power_of_2(head_dim - value_dim)),
        IS_CHUNKED=layout.is_chunked,
        HAS_FP8=widens_itself(q_TNH.device),
        **describe_slots(layout.fp8, slots_XE.shape[1]),
        PRECISION="ieee" if q_TNH.dtype == torch.float32 else "tf32",
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )
    return out_TNV


def check_latents(q_TNH: Tensor, slots_XE: Tensor, layout: PagedLayout, value_dim: int) -> None:
    """Raises: `AssertionError` where the arguments are not those of latent layers."""
    check_slots(slots_XE, q_TNH.shape[2], layout.fp8)
    assert 0 < value_dim < q_TNH.shape[2], "values are no part of the keys"
    assert layout.num_kv_heads == 1, "latents have one KV head"
    assert not layout.soft_cap, "latents have no soft cap"
    assert layout.sinks_N is None, "latents have no sinks"


def latent_attention(
    q_TNH: Tensor, slots_XE: Tensor, batch: PagedBatch, layout: PagedLayout, value_dim: int
) -> Tensor:
    """The mixed latents `[T, N, V]` of all tokens of a step, whose latents are in their slots."""
    check_latents(q_TNH, slots_XE, layout, value_dim)
    if uses_triton(q_TNH):
        return latent_attention_triton(q_TNH, slots_XE, batch, layout, value_dim)
    return latent_attention_reference(q_TNH, slots_XE, batch, layout, value_dim)
