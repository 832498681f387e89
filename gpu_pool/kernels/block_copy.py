"""Copies whole blocks of KV memory: out of it into a row of blocks that lie together, and back.

What lies together goes to the host, or comes from it, in one transfer.
Shapes: P blocks of the memory, M blocks that are copied, of any shape and dtype.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gpu_pool.kernels.triton_language import jit, tl, uses_triton

_BLOCK = 2048
"""Words of 8 bytes that a program copies."""


def gather_blocks_reference(blocks_P: Tensor, ids_M: Tensor) -> Tensor:
    """The blocks of those ids, one behind the other, in plain torch."""
    return blocks_P.index_select(0, ids_M)


def scatter_blocks_reference(blocks_P: Tensor, ids_M: Tensor, copies_M: Tensor) -> None:
    """Puts copies in the place of the blocks of those ids, in plain torch."""
    blocks_P.index_copy_(0, ids_M, copies_M)


@jit
def _block_copy_kernel(
    memory_ptr, copies_ptr, ids_ptr, num_words, GATHERS: tl.constexpr, BLOCK: tl.constexpr
):
    """A stretch of one block per program."""
    copy = tl.program_id(0).to(tl.int64)
    block = tl.load(ids_ptr + copy).to(tl.int64)
    words = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_word = words < num_words
    block_ptr = memory_ptr + block * num_words + words
    copy_ptr = copies_ptr + copy * num_words + words
    if GATHERS:
        tl.store(copy_ptr, tl.load(block_ptr, mask=is_word), mask=is_word)
    else:
        tl.store(block_ptr, tl.load(copy_ptr, mask=is_word), mask=is_word)


def gather_blocks_triton(blocks_P: Tensor, ids_M: Tensor) -> Tensor:
    """The blocks of those ids, one behind the other, by triton."""
    sizes = (ids_M.shape[0], *blocks_P.shape[1:])
    copies_M = torch.empty(sizes, dtype=blocks_P.dtype, device=blocks_P.device)
    _copy(blocks_P, ids_M, copies_M, gathers=True)
    return copies_M


def scatter_blocks_triton(blocks_P: Tensor, ids_M: Tensor, copies_M: Tensor) -> None:
    """Puts copies in the place of the blocks of those ids, by triton."""
    _copy(blocks_P, ids_M, copies_M, gathers=False)


def _copy(blocks_P: Tensor, ids_M: Tensor, copies_M: Tensor, *, gathers: bool) -> None:
    """Launches the kernel over words of 8 bytes, which divide every block."""
    blocks, copies = (t.view(t.shape[0], -1).view(torch.int64) for t in (blocks_P, copies_M))
    num_words = blocks.shape[1]
    grid = (ids_M.shape[0], -(-num_words // _BLOCK))
    _block_copy_kernel[grid](
        blocks, copies, ids_M, num_words, GATHERS=gathers, BLOCK=_BLOCK, num_warps=8
    )


def gather_blocks(blocks_P: Tensor, ids_M: Tensor) -> Tensor:
    """The blocks of those ids, int64 on the same device, one behind the other."""
    if uses_triton(blocks_P):
        return gather_blocks_triton(blocks_P, ids_M)
    return gather_blocks_reference(blocks_P, ids_M)


def scatter_blocks(blocks_P: Tensor, ids_M: Tensor, copies_M: Tensor) -> None:
    """Puts copies in the place of the blocks of those ids, which are distinct."""
    assert copies_M.shape == (ids_M.shape[0], *blocks_P.shape[1:]), "copies are no blocks"
    assert copies_M.dtype == blocks_P.dtype, "dtypes differ"
    if uses_triton(blocks_P):
        scatter_blocks_triton(blocks_P, ids_M, copies_M)
    else:
        scatter_blocks_reference(blocks_P, ids_M, copies_M)
