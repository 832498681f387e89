"""Paged attention of single tokens on a GPU, contexts cut into splits that run side by side.

One sequence alone cannot fill a GPU: its context is cut into splits, each mixed by itself, and a
second kernel joins them by their softmax weights. The grid has as many programs as the GPU runs at
once, which walk the items of a `SplitPlan`, so that one captured graph serves every length without
programs that find nothing to do. A sequence's result does not change with its neighbours.
Shapes: B sequences, N query heads, K KV heads, H head dim, Z items; slots as in `paged_attention`.
Takes bf16, fp16 or fp32, fp32 accumulation. Source: Dao et al. 2023 (Flash-Decoding).
Read next: `split_plan`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_pool.kernels.dependent_launch import find_launch_options, wait_for_inputs
from gpu_pool.kernels.fp8_slots import (
    check_slots,
    describe_slots,
    read_slots,
    view_scales,
    widens_itself,
)
from gpu_pool.kernels.gpu_traits import GpuTraits, find_traits
from gpu_pool.kernels.paged_attention import (
    PagedLayout,
    load_kv,
    locate_slots,
    mix_keys,
    softmax_with_sinks,
    start_softmax,
)
from gpu_pool.kernels.split_plan import MAX_SPLITS, SplitPlan, find_seen_start
from gpu_pool.kernels.triton_language import jit, next_power_of_2, tl, uses_triton

_OTHER_SHARED_BYTES = 8 << 10
"""What a program's queries, weights and table take beside keys and values."""


@dataclass(frozen=True, slots=True)
class SplitLaunch:
    """How the programs that mix are launched."""

    keys: int
    """Of one product."""
    num_warps: int
    num_stages: int
    num_programs: int


def choose_split_decode_launch(
    traits: GpuTraits, num_rows: int, padded_dim: int, itemsize: int
) -> SplitLaunch:
    """Small products of few warps, many programs; of the stages, two hold keys and values.

    Measured on an H200, heads of 128 elements in bf16, beside splits of 256 keys by products of 64
    and four warps: 0.91 to 0.98 of the time for 8 to 256 sequences of 600 to 4,096 tokens; worse
    for 256 of 330 (1.06, within a step) and for one of 32,768 (1.3), which has too few programs.
    """
    row_bytes = 2 * padded_dim * itemsize
    keys = 32
    while keys > 16 and 2 * keys * row_bytes > traits.shared_bytes // 3:
        keys //= 2
    resident = traits.shared_bytes // (2 * keys * row_bytes + _OTHER_SHARED_BYTES)
    num_warps = 8 if num_rows > 16 else 2 if padded_dim * itemsize <= 256 else 4
    programs = max(1, min(12 // num_warps, resident)) * traits.num_processors
    return SplitLaunch(keys, num_warps, 3, programs)


def split_decode_reference(
    q_BNH: Tensor, slots_XE: Tensor, tables_BC: Tensor, lengths_B: Tensor, layout: PagedLayout
) -> Tensor:
    """The mixed values `[B, N, H]`, in plain torch, one sequence after the other."""
    num_heads, head_dim = q_BNH.shape[1:]
    num_shared = num_heads // layout.num_kv_heads
    out_BNH = torch.empty_like(q_BNH)
    for sequence, length in enumerate(lengths_B.tolist()):
        start = find_seen_start(length, layout.window, layout.is_chunked)
        positions_L = torch.arange(start, length, device=q_BNH.device)
        blocks_L = tables_BC[sequence].long()[positions_L // layout.block_size]
        slots_L = (blocks_L * layout.num_layers + layout.layer) * layout.block_size
        slots_LE = slots_XE[slots_L + positions_L % layout.block_size]
        kv = read_slots(slots_LE, layout.fp8, torch.float32)
        kv_L2KH = kv.view(-1, 2, layout.num_kv_heads, head_dim)
        q_KGH = q_BNH[sequence].float().view(layout.num_kv_heads, num_shared, head_dim)
        scores_KGL = torch.einsum("kgh,lkh->kgl", q_KGH, kv_L2KH[:, 0]) * layout.scale
        if layout.soft_cap:
            scores_KGL = layout.soft_cap * torch.tanh(scores_KGL / layout.soft_cap)
        weights_NTL = softmax_with_sinks(scores_KGL.view(num_heads, 1, -1), layout.sinks_N)
        mixed_KGH = torch.einsum("kgl,lkh->kgh", weights_NTL.view(scores_KGL.shape), kv_L2KH[:, 1])
        out_BNH[sequence] = mixed_KGH.reshape(num_heads, head_dim).to(q_BNH.dtype)
    return out_BNH


@jit
def _split_decode_kernel(
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
    soft_cap,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    HAS_CAP: tl.constexpr,
    SLOT: tl.constexpr,
    SCALE_OFFSET: tl.constexpr,
    HAS_FP8: tl.constexpr,
    PRECISION: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Items and KV heads in turns; rows are the query heads that share a KV head."""
    wait_for_inputs(DEPENDENT)
    SHARED: tl.constexpr = HEADS // KV_HEADS
    memory = (slots_ptr, scales_ptr)
    rows = tl.arange(0, ROWS)
    is_row = rows < SHARED
    dims = tl.arange(0, PADDED_DIM)
    is_dim = dims < HEAD_DIM
    is_q = is_row[:, None] & is_dim[None, :]
    num_works = tl.load(bounds_ptr + num_sequences) * KV_HEADS
    for work in range(tl.program_id(0), num_works, tl.num_programs(0)):
        item = work // KV_HEADS
        kv_head = work % KV_HEADS
        heads = kv_head * SHARED + rows
        sequence = tl.load(items_ptr + item * 3).to(tl.int64)
        first = tl.load(items_ptr + item * 3 + 1)
        end = tl.load(items_ptr + item * 3 + 2)
        q_offsets = sequence * q_stride + heads[:, None] * HEAD_DIM + dims[None, :]
        q = tl.load(q_ptr + q_offsets, mask=is_q, other=0.0)
        table_ptr = tables_ptr + sequence * table_stride
        best, total = start_softmax(bounds_ptr, heads, is_row, False, ROWS)  # sinks join at the end
        mixed = tl.zeros([ROWS, PADDED_DIM], tl.float32)
        for key_start in range(first, end, KEYS):
            keys = key_start + tl.arange(0, KEYS)
            is_key = keys < end
            slots = locate_slots(table_ptr, keys, is_key, layer, num_layers, BLOCK_SIZE)
            kv = load_kv(
                memory,
                slots,
                is_key,
                dims,
                kv_head,
                KV_HEADS,
                HEAD_DIM,
                SLOT,
                SCALE_OFFSET,
                HAS_FP8,
            )
            is_seen = is_key[None, :]
            best, total, mixed = mix_keys(
                q, kv, is_seen, best, total, mixed, scale, soft_cap, HAS_CAP, PRECISION
            )
        parts = item * HEADS + heads.to(tl.int64)
        tl.store(best_ptr + parts, best, mask=is_row)
        tl.store(total_ptr + parts, total, mask=is_row)
        tl.store(mixed_ptr + parts[:, None] * HEAD_DIM + dims[None, :], mixed, mask=is_q)


@jit
def _join_splits_kernel(
    mixed_ptr,
    best_ptr,
    total_ptr,
    bounds_ptr,
    sinks_ptr,
    out_ptr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
    DIMS: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """One stretch of one head of one sequence per program; all splits are there at once."""
    wait_for_inputs(DEPENDENT)
    sequence = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    dims = tl.program_id(2) * DIMS + tl.arange(0, DIMS)
    is_dim = dims < HEAD_DIM
    first_item = tl.load(bounds_ptr + sequence)
    splits = tl.arange(0, MAX_SPLITS)
    is_split = splits < tl.load(bounds_ptr + sequence + 1) - first_item
    parts = (first_item + splits).to(tl.int64) * HEADS + head
    bests = tl.load(best_ptr + parts, mask=is_split, other=float("-inf"))
    best = tl.max(bests, 0)
    if HAS_SINKS:
        sink = tl.load(sinks_ptr + head) * 1.4426950408889634
        best = tl.maximum(best, sink)
    # A context without tokens has seen nothing: minus infinity less itself is NaN.
    best = tl.where(best == float("-inf"), 0.0, best)
    weights = tl.exp2(bests - best)
    total = tl.sum(weights * tl.load(total_ptr + parts, mask=is_split, other=0.0), 0)
    if HAS_SINKS:
        total += tl.exp2(sink - best)
    is_mixed = is_split[:, None] & is_dim[None, :]
    mixed = tl.load(mixed_ptr + parts[:, None] * HEAD_DIM + dims[None, :], mask=is_mixed, other=0.0)
    out = tl.sum(mixed * weights[:, None], 0) / tl.where(total == 0.0, 1.0, total)
    tl.store(
        out_ptr + (sequence * HEADS + head) * HEAD_DIM + dims,
        out.to(out_ptr.dtype.element_ty),
        mask=is_dim,
    )


def join_splits_triton(
    mixed_ZNH: Tensor,
    best_ZN: Tensor,
    total_ZN: Tensor,
    plan: SplitPlan,
    sinks_N: Tensor | None,
    out_BNH: Tensor,
) -> None:
    """Fills `out_BNH` with what the splits of each sequence come to; sums are in fp32."""
    num_sequences, num_heads, head_dim = out_BNH.shape
    dims = min(128, next_power_of_2(head_dim))
    _join_splits_kernel[(num_sequences, num_heads, -(-head_dim // dims))](
        mixed_ZNH,
        best_ZN,
        total_ZN,
        plan.bounds_B,
        sinks_N,
        out_BNH,
        HEADS=num_heads,
        HEAD_DIM=head_dim,
        MAX_SPLITS=MAX_SPLITS,
        DIMS=dims,
        HAS_SINKS=sinks_N is not None,
        num_warps=4,
        **find_launch_options(out_BNH.device),
    )


def split_decode_triton(
    q_BNH: Tensor,
    slots_XE: Tensor,
    tables_BC: Tensor,
    plan: SplitPlan,
    layout: PagedLayout,
    launch: SplitLaunch | None = None,
) -> Tensor:
    """The mixed values `[B, N, H]`, by triton; only the heads of a row of q must lie together.

    `launch` is chosen by shape unless it is given.
    """
    num_sequences, num_heads, head_dim = q_BNH.shape
    assert q_BNH.stride(1) == head_dim, "the heads of a token lie apart"
    padded_dim = max(16, next_power_of_2(head_dim))
    rows = max(16, next_power_of_2(num_heads // layout.num_kv_heads))
    launch = launch or choose_split_decode_launch(
        find_traits(q_BNH.device), rows, padded_dim, q_BNH.element_size()
    )
    num_items = plan.items_Z3.shape[0]
    mixed, best, total = (
        torch.empty((num_items, num_heads, *dims), dtype=torch.float32, device=q_BNH.device)
        for dims in ((head_dim,), (), ())
    )
    out_BNH = torch.empty(q_BNH.shape, dtype=q_BNH.dtype, device=q_BNH.device)
    num_programs = min(launch.num_programs, num_items * layout.num_kv_heads)
    _split_decode_kernel[(num_programs,)](
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
        layout.soft_cap,
        HEADS=num_heads,
        KV_HEADS=layout.num_kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=layout.block_size,
        ROWS=rows,
        KEYS=launch.keys,
        PADDED_DIM=padded_dim,
        HAS_CAP=layout.soft_cap > 0,
        HAS_FP8=widens_itself(q_BNH.device),
        **describe_slots(layout.fp8, slots_XE.shape[1]),
        PRECISION="ieee" if q_BNH.dtype == torch.float32 else "tf32",
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
        **find_launch_options(q_BNH.device),
    )
    join_splits_triton(mixed, best, total, plan, layout.sinks_N, out_BNH)
    return out_BNH


def split_decode(
    q_BNH: Tensor,
    slots_XE: Tensor,
    tables_BC: Tensor,
    lengths_B: Tensor,
    plan: SplitPlan,
    layout: PagedLayout,
) -> Tensor:
    """The mixed values `[B, N, H]` of the last token of each context, whose KV is in its slot.

    `plan` is that of `lengths_B` and the layout's window.
    """
    assert q_BNH.shape[1] % layout.num_kv_heads == 0, "N is no multiple of K"
    check_slots(slots_XE, 2 * layout.num_kv_heads * q_BNH.shape[2], layout.fp8)
    assert tables_BC.shape[0] == lengths_B.shape[0] == q_BNH.shape[0], "arguments disagree on B"
    assert plan.bounds_B.shape[0] == q_BNH.shape[0] + 1, "the plan is another batch's"
    if uses_triton(q_BNH):
        return split_decode_triton(q_BNH, slots_XE, tables_BC, plan, layout)
    return split_decode_reference(q_BNH, slots_XE, tables_BC, lengths_B, layout)
