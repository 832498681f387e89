"""Whole blocks out of KV memory and back: the kernel against the reference."""

import pytest
import torch

from gpu_pool.kernels.block_copy import (
    gather_blocks_reference,
    gather_blocks_triton,
    scatter_blocks,
    scatter_blocks_reference,
    scatter_blocks_triton,
)
from tests.gpu_pool.kernels.triton_cases import DEVICE, needs_triton

SHAPES = [(9, 2, 16, 2, 3, 5), (7, 1, 16, 1, 1, 1), (5, 3, 64, 2, 4, 24)]
DTYPES = (torch.bfloat16, torch.float32, torch.uint8)


@needs_triton
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("ids", [[3], [4, 0, 2], list(range(5))])
def test_the_kernel_copies_what_the_reference_copies(
    shape: tuple[int, ...], ids: list[int], dtype: torch.dtype
) -> None:
    blocks = torch.randint(0, 255, shape, device=DEVICE).to(dtype)
    index = torch.tensor(ids, device=DEVICE)
    copies = gather_blocks_reference(blocks, index)
    assert torch.equal(gather_blocks_triton(blocks, index), copies)
    expected, actual = blocks.clone(), blocks.clone()
    changed = copies.flip(0) + 1
    scatter_blocks_reference(expected, index, changed)
    scatter_blocks_triton(actual, index, changed)
    assert torch.equal(actual, expected)
    assert not torch.equal(actual, blocks)  # the control


def test_copies_that_are_no_blocks_are_refused() -> None:
    blocks = torch.zeros(4, 2, 16, 2, 1, 8)
    with pytest.raises(AssertionError, match="no blocks"):
        scatter_blocks(blocks, torch.tensor([1, 2]), blocks[:1])
    with pytest.raises(AssertionError, match="dtypes"):
        scatter_blocks(blocks, torch.tensor([1]), blocks[:1].bfloat16())
