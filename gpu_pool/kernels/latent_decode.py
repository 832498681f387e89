"""Paged attention of single tokens over latents on a GPU, contexts cut into splits.

What `split_decode` is to `paged_attention`, this is to `latent_attention`: programs walk the items
of a `SplitPlan` times tiles of heads, and the same second kernel joins the splits.
Shapes: B sequences, N query heads, H latent with its turned part, V values, Z items.
Takes bf16, fp16 or fp32, fp32 accumulation. Source: DeepSeek-V2; Dao et al. 2023 (Flash-Decoding).
"""

from __future__ import annotations

import torch
from torch import Tensor

from gpu_pool.kernels.fp8_slots import describe_slots, view_scales, widens_itself
from gpu_pool.kernels.gpu_traits import find_traits
from gpu_pool.kernels.latent_attention import (
    check_latents,
    choose_latent_launch,
    gather_latents,
    load_latents,
    load_slots,
    mix_latents,
)
from gpu_pool.kernels.paged_attention import PagedLayout, locate_slots
from gpu_pool.kernels.split_decode import join_splits_triton
from gpu_pool.kernels.split_plan import SplitPlan, find_seen_start
from gpu_pool.kernels.triton_language import jit, next_power_of_2, tl, uses_triton


def latent_decode_reference(
    q_BNH: Tensor,
    slots_XE: Tensor,
    tables_BC: Tensor,
    lengths_B: Tensor,
    layout: PagedLayout,
    value_dim: int,
) -> Tensor:
    """The mixed latents `[B, N, V]`, in plain torch, one sequence after the other."""
    out_BNV = torch.empty((*q_BNH.shape[:2], value_dim), dtype=q_BNH.dtype, device=q_BNH.device)
    for sequence, length in enumerate(lengths_B.tolist()):
        start = find_seen_start(length, layout.window, layout.is_chunked)
        positions_L = torch.arange(start, length, device=q_BNH.device)
        latents_LH = gather_latents(slots_XE, tables_BC[sequence], positions_L, layout)
        weights_NL = (q_BNH[sequence].float() @ latents_LH.T * layout.scale).softmax(-1)
        out_BNV[sequence] = (weights_NL @ latents_LH[:, :value_dim]).to(q_BNH.dtype)
    return out_BNV


@jit
def _latent_decode_kernel(
    q_ptr,
    slots_ptr,
    scales_ptr,
    mixed_ptr,
    best_ptr,
    total_ptr,
    tables_ptr,
    items_ptr,
    bounds_ptr,
    num_sequences,
    q_stride,
    table_stride,
    layer,
    num_layers,
    scale,
    HEADS: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    REST_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    REST: tl.constexpr,
    SLOT: tl.constexpr,
    SCALE_OFFSET: tl.constexpr,
    HAS_FP8: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Items and tiles of heads in turns; neighbours read the same latents."""
    HEAD_DIM: tl.constexpr = VALUE_DIM + REST_DIM
    TILES: tl.constexpr = (HEADS + ROWS - 1) // ROWS
    memory = (slots_ptr, scales_ptr)
    values = tl.arange(0, VALUES)
    is_value = values < VALUE_DIM
    num_works = tl.load(bounds_ptr + num_sequences) * TILES
    for work in range(tl.program_id(0), num_works, tl.num_programs(0)):
        item = work // TILES
        heads = work % TILES * ROWS + tl.arange(0, ROWS)
        is_row = heads < HEADS
        sequence = tl.load(items_ptr + item * 3).to(tl.int64)
        first = tl.load(items_ptr + item * 3 + 1)
        end = tl.load(items_ptr + item * 3 + 2)
        q_rows_ptr = q_ptr + (sequence * q_stride + heads * HEAD_DIM)[:, None]
        q = load_latents(q_rows_ptr, is_row, VALUE_DIM, REST_DIM, VALUES, REST)
        table_ptr = tables_ptr + sequence * table_stride
        best = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        mixed = tl.zeros([ROWS, VALUES], tl.float32)
        for key_start in range(first, end, KEYS):
            keys = key_start + tl.arange(0, KEYS)
            is_key = keys < end
            slots = locate_slots(table_ptr, keys, is_key, layer, num_layers, BLOCK_SIZE)
            latents = load_slots(
                memory,
                slots,
                is_key,
                VALUE_DIM,
                REST_DIM,
                VALUES,
                REST,
                SLOT,
                SCALE_OFFSET,
                HAS_FP8,
            )
            best, total, mixed = mix_latents(
                q, latents, is_key[None, :], best, total, mixed, scale, PRECISION
            )
        parts = item * HEADS + heads.to(tl.int64)
        tl.store(best_ptr + parts, best, mask=is_row)
        tl.store(total_ptr + parts, total, mask=is_row)
        tl.store(
            mixed_ptr + parts[:, None] * VALUE_DIM + values[None, :],
            mixed,
            mask=is_row[:, None] & is_value[None, :],
        )


def latent_decode_triton(
    q_BNH: Tensor,
    slots_XE: Tensor,
    tables_BC: Tensor,
    plan: SplitPlan,
    layout: PagedLayout,
    value_dim: int,
) -> Tensor:
    """The mixed latents `[B, N, V]`, by triton; only the heads of a row of q must lie together."""
    num_sequences, num_heads, head_dim = q_BNH.shape
    assert q_BNH.stride(1) == head_dim, "the heads of a token lie apart"
    traits = find_traits(q_BNH.device)
    launch = choose_latent_launch(
        traits, num_heads, value_dim, q_BNH.element_size(), is_fp8=layout.fp8 is not None
    )
    num_items = plan.items_Z3.shape[0]
    mixed, best, total = (
        torch.empty((num_items, num_heads, *dims), dtype=torch.float32, device=q_BNH.device)
        for dims in ((value_dim,), (), ())
    )
    out_BNV = torch.empty(
        (num_sequences, num_heads, value_dim), dtype=q_BNH.dtype, device=q_BNH.device
    )
    num_works = num_items * -(-num_heads // launch.rows)
    _latent_decode_kernel[(min(2 * traits.num_processors, num_works),)](
        q_BNH,
        slots_XE,
        view_scales(slots_XE, layout.fp8),
        mixed,
        best,
        total,
        tables_BC,
        plan.items_Z3,
        plan.bounds_B,
        num_sequences,
        q_BNH.stride(0),
        tables_BC.stride(0),
        layout.layer,
        layout.num_layers,
        layout.scale,
        HEADS=num_heads,
        VALUE_DIM=value_dim,
        REST_DIM=head_dim - value_dim,
        BLOCK_SIZE=layout.block_size,
        ROWS=launch.rows,
        KEYS=launch.keys,
        VALUES=max(16, next_power_of_2(value_dim)),
        REST=max(16, next_power_of_2(head_dim - value_dim)),
        HAS_FP8=widens_itself(q_BNH.device),
        **describe_slots(layout.fp8, slots_XE.shape[1]),
        PRECISION="ieee" if q_BNH.dtype == torch.float32 else "tf32",
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )
    join_splits_triton(mixed, best, total, plan, None, out_BNV)
    return out_BNV


def latent_decode(
    q_BNH: Tensor,
    slots_XE: Tensor,
    tables_BC: Tensor,
    lengths_B: Tensor,
    plan: SplitPlan,
    layout: PagedLayout,
    value_dim: int,
) -> Tensor:
    """The mixed latents `[B, N, V]` of the last token of each context, whose latent is in its slot.

    `plan` is that of `lengths_B` and the layout's window.
    """
    check_latents(q_BNH, slots_XE, layout, value_dim)
    assert tables_BC.shape[0] == lengths_B.shape[0] == q_BNH.shape[0], "arguments disagree on B"
    assert plan.bounds_B.shape[0] == q_BNH.shape[0] + 1, "the plan is another batch's"
    if uses_triton(q_BNH):
        return latent_decode_triton(q_BNH, slots_XE, tables_BC, plan, layout, value_dim)
    return latent_decode_reference(q_BNH, slots_XE, tables_BC, lengths_B, layout, value_dim)
