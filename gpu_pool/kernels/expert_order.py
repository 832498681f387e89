"""Rows in the order of the experts that compute them, found without asking the device anything.

A token counts once for each expert that it chose. Its place is the number of rows that come before
it, by expert and then by row: few rows are counted by a kernel, many are sorted. Blocks of rows are
cut per expert, and there are as many as the unluckiest choice needs, so that neither shapes nor
grids depend on what was chosen: blocks that are not needed have no expert.
Shapes: T tokens, C chosen experts of a token, N = T · C rows, E experts, B blocks. Integers only.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_pool.kernels.triton_language import jit, next_power_of_2, tl, uses_triton

_COUNTED_ROWS = 8192
"""Up to so many rows each is compared with all; above, sorting is less work."""
_ROWS = 32
_OTHERS = 256
_BLOCKS = 64


@dataclass(frozen=True, slots=True)
class HeldExperts:
    """The neighbours among a layer's `total` experts that are here; others are another rank's."""

    first: int
    count: int
    total: int


def hold_neighbours(count: int, total: int, rank: int) -> HeldExperts:
    """What a rank holds where each has `count` of `total`."""
    return HeldExperts(rank * count, count, total)


@dataclass(frozen=True, slots=True)
class ExpertOrder:
    """Rows by expert. Those of experts that are not held come last and are in no block."""

    rows_N: Tensor
    """Which row stands at each place, int32."""
    experts_B: Tensor
    """The held expert, from 0, of each block; -1 where a block is not needed. int32."""
    firsts_B: Tensor
    """The place of a block's first row, int32."""
    ends_B: Tensor
    """The place behind its last row, int32."""
    block_rows: int


def count_blocks(num_rows: int, num_experts: int, block_rows: int) -> int:
    """Blocks that suffice however rows fall on experts: none is empty, one per expert not full."""
    return min(num_rows, (num_rows + num_experts * (block_rows - 1)) // block_rows)


def order_by_expert_reference(chosen_TC: Tensor, held: HeldExperts, block_rows: int) -> ExpertOrder:
    """The order, by torch's own sorting; nothing is read back from a device."""
    experts_N = chosen_TC.flatten() - held.first
    is_held_N = (experts_N >= 0) & (experts_N < held.count)
    sorted_N, rows_N = experts_N.where(is_held_N, held.count).sort(stable=True)
    bounds = torch.arange(held.count + 1, device=chosen_TC.device, dtype=sorted_N.dtype)
    starts = torch.searchsorted(sorted_N, bounds)
    num_blocks_E = (starts.diff() + (block_rows - 1)) // block_rows
    ends_E = num_blocks_E.cumsum(0)
    blocks_B = torch.arange(
        count_blocks(len(rows_N), held.count, block_rows), device=chosen_TC.device
    )
    experts_B = torch.searchsorted(ends_E, blocks_B, right=True)
    is_needed_B = experts_B < held.count
    near_B = experts_B.clamp(max=held.count - 1)
    firsts_B = starts[near_B] + (blocks_B - ends_E[near_B] + num_blocks_E[near_B]) * block_rows
    ends_B = torch.minimum(firsts_B + block_rows, starts[near_B + 1])
    return ExpertOrder(
        rows_N.int(),
        experts_B.where(is_needed_B, -1).int(),
        firsts_B.where(is_needed_B, 0).int(),
        ends_B.where(is_needed_B, 0).int(),
        block_rows,
    )


@jit
def _load_experts(chosen_ptr, rows, num_rows, first, HELD: tl.constexpr):
    """The held experts of rows; others' count as the one behind the last, missing rows' more."""
    experts = tl.load(chosen_ptr + rows, mask=rows < num_rows, other=0).to(tl.int32) - first
    experts = tl.where((experts >= 0) & (experts < HELD), experts, HELD)
    return tl.where(rows < num_rows, experts, HELD + 1)


@jit
def _rank_kernel(
    chosen_ptr,
    ordered_ptr,
    num_rows,
    first,
    HELD: tl.constexpr,
    ROWS: tl.constexpr,
    OTHERS: tl.constexpr,
):
    """Some rows per program, each put where as many come before it as there are places before."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    experts = _load_experts(chosen_ptr, rows, num_rows, first, HELD)
    places = tl.zeros([ROWS], tl.int32)
    for start in range(0, num_rows, OTHERS):
        others = start + tl.arange(0, OTHERS)
        theirs = _load_experts(chosen_ptr, others, num_rows, first, HELD)
        is_earlier = (theirs[None, :] == experts[:, None]) & (others[None, :] < rows[:, None])
        is_before = (theirs[None, :] < experts[:, None]) | is_earlier
        places += tl.sum(is_before.to(tl.int32), 1)
    tl.store(ordered_ptr + places, rows, mask=rows < num_rows)


@jit
def _cut_kernel(
    chosen_ptr,
    blocks_ptr,
    num_rows,
    num_blocks,
    first,
    HELD: tl.constexpr,
    PADDED_HELD: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCKS: tl.constexpr,
    OTHERS: tl.constexpr,
):
    """Some blocks per program: counts the rows of all experts and finds whose its blocks are."""
    experts = tl.arange(0, PADDED_HELD)
    counts = tl.zeros([PADDED_HELD], tl.int32)
    for start in range(0, num_rows, OTHERS):
        rows = start + tl.arange(0, OTHERS)
        theirs = _load_experts(chosen_ptr, rows, num_rows, first, HELD)
        is_own = (theirs[:, None] == experts[None, :]) & (experts[None, :] < HELD)
        counts += tl.sum(is_own.to(tl.int32), 0)
    behind = tl.cumsum(counts, 0)
    num_cut = (counts + BLOCK_ROWS - 1) // BLOCK_ROWS
    cut_behind = tl.cumsum(num_cut, 0)
    blocks = tl.program_id(0) * BLOCKS + tl.arange(0, BLOCKS)
    is_own = (blocks[:, None] < cut_behind[None, :]) & (
        blocks[:, None] >= (cut_behind - num_cut)[None, :]
    )
    own = tl.sum(tl.where(is_own, experts[None, :], 0), 1)
    first_blocks = tl.sum(tl.where(is_own, (cut_behind - num_cut)[None, :], 0), 1)
    first_rows = tl.sum(tl.where(is_own, (behind - counts)[None, :], 0), 1)
    end_rows = tl.sum(tl.where(is_own, behind[None, :], 0), 1)
    is_needed = tl.sum(is_own.to(tl.int32), 1) > 0
    firsts = first_rows + (blocks - first_blocks) * BLOCK_ROWS
    ends = tl.minimum(firsts + BLOCK_ROWS, end_rows)
    is_block = blocks < num_blocks
    tl.store(blocks_ptr + blocks, tl.where(is_needed, own, -1), mask=is_block)
    tl.store(blocks_ptr + num_blocks + blocks, tl.where(is_needed, firsts, 0), mask=is_block)
    tl.store(blocks_ptr + 2 * num_blocks + blocks, tl.where(is_needed, ends, 0), mask=is_block)


def choose_others(padded_experts: int) -> int:
    """Rows that are counted for all experts at once."""
    return max(16, 8192 // padded_experts)


def order_by_expert_triton(chosen_TC: Tensor, held: HeldExperts, block_rows: int) -> ExpertOrder:
    """The order, by triton: two launches."""
    assert chosen_TC.is_contiguous(), "chosen_TC is not contiguous"
    num_rows = chosen_TC.numel()
    num_blocks = count_blocks(num_rows, held.count, block_rows)
    rows_N = torch.empty(num_rows, dtype=torch.int32, device=chosen_TC.device)
    blocks_3B = torch.empty((3, num_blocks), dtype=torch.int32, device=chosen_TC.device)
    _rank_kernel[(-(-num_rows // _ROWS),)](
        chosen_TC,
        rows_N,
        num_rows,
        held.first,
        HELD=held.count,
        ROWS=_ROWS,
        OTHERS=_OTHERS,
        num_warps=4,
    )
    padded = next_power_of_2(held.count)
    _cut_kernel[(-(-num_blocks // _BLOCKS),)](
        chosen_TC,
        blocks_3B,
        num_rows,
        num_blocks,
        held.first,
        HELD=held.count,
        PADDED_HELD=padded,
        BLOCK_ROWS=block_rows,
        BLOCKS=_BLOCKS,
        OTHERS=choose_others(padded),
        num_warps=8,
    )
    return ExpertOrder(rows_N, blocks_3B[0], blocks_3B[1], blocks_3B[2], block_rows)


def order_by_expert(chosen_TC: Tensor, held: HeldExperts, block_rows: int) -> ExpertOrder:
    """The rows `[T · C]` by expert, in blocks of at most `block_rows`."""
    assert held.count > 0, "no expert is held"
    if uses_triton(chosen_TC) and chosen_TC.numel() <= _COUNTED_ROWS:
        return order_by_expert_triton(chosen_TC, held, block_rows)
    return order_by_expert_reference(chosen_TC, held, block_rows)
