"""Brings the block tables of a step's single tokens together, and says where their KV goes.

Tables lie in rows that outlive steps; a step names the rows that compute, each with the position of
its token. Only as much of a table is copied as its context has, so that a captured graph may serve
every length at little cost; what lies behind keeps what it held.
Shapes: B single tokens, R rows, C blocks of the longest table, S block size. Takes int32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gpu_pool.kernels.triton_language import jit, tl, uses_triton

_BLOCK = 1024


def gather_tables_reference(
    tables_RC: Tensor,
    rows_B: Tensor,
    positions_B: Tensor,
    block_size: int,
    block_slots: int,
    out_BC: Tensor,
    slots_B: Tensor,
) -> None:
    """Fills `out_BC` and `slots_B`, in plain torch; copies the tables whole."""
    torch.index_select(tables_RC, 0, rows_B, out=out_BC)
    blocks_B1 = out_BC.gather(1, (positions_B // block_size).long()[:, None]).long()
    slots_B.copy_(blocks_B1[:, 0] * block_slots + positions_B % block_size)


@jit
def _gather_tables_kernel(
    tables_ptr,
    rows_ptr,
    at_ptr,
    gathered_ptr,
    first_slots_ptr,
    tables_stride,
    out_stride,
    block_slots,
    BLOCK_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A stretch of one table per program; the one with the newest block tells its slot."""
    token = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + token).to(tl.int64)
    position = tl.load(at_ptr + token)
    newest = position // BLOCK_SIZE
    first = tl.program_id(1) * BLOCK
    if first > newest:
        return
    columns = first + tl.arange(0, BLOCK)
    is_held = columns <= newest
    blocks = tl.load(tables_ptr + row * tables_stride + columns, mask=is_held, other=0)
    tl.store(gathered_ptr + token * out_stride + columns, blocks, mask=is_held)
    if newest < first + BLOCK:
        block = tl.load(tables_ptr + row * tables_stride + newest).to(tl.int64)
        tl.store(first_slots_ptr + token, block * block_slots + position % BLOCK_SIZE)


def gather_tables_triton(
    tables_RC: Tensor,
    rows_B: Tensor,
    positions_B: Tensor,
    block_size: int,
    block_slots: int,
    out_BC: Tensor,
    slots_B: Tensor,
) -> None:
    """Fills `out_BC` and `slots_B`, by triton."""
    num_tokens, num_columns = out_BC.shape
    _gather_tables_kernel[(num_tokens, -(-num_columns // _BLOCK))](
        tables_RC,
        rows_B,
        positions_B,
        out_BC,
        slots_B,
        tables_RC.stride(0),
        out_BC.stride(0),
        block_slots,
        BLOCK_SIZE=block_size,
        BLOCK=_BLOCK,
        num_warps=4,
    )


def gather_tables(
    tables_RC: Tensor,
    rows_B: Tensor,
    positions_B: Tensor,
    block_size: int,
    block_slots: int,
    out_BC: Tensor,
    slots_B: Tensor,
) -> None:
    """Fills `out_BC` with the tables of `rows_B`, and `slots_B` (int64) with the slots of the
    tokens at `positions_B` in the first layer, where a block has `block_slots` of all layers.
    """
    assert out_BC.shape[1] == tables_RC.shape[1], "tables disagree on C"
    assert rows_B.shape == positions_B.shape == slots_B.shape == out_BC.shape[:1], "B differs"
    fill = gather_tables_triton if uses_triton(tables_RC) else gather_tables_reference
    fill(tables_RC, rows_B, positions_B, block_size, block_slots, out_BC, slots_B)
