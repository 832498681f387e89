"""Single tokens over long contexts: the kernel against the reference, splits and neighbours."""

import pytest
import torch
from torch import Tensor

from gpu_pool.kernels.paged_attention import PagedLayout
from gpu_pool.kernels.split_decode import (
    SPLIT_KEYS,
    split_decode_reference,
    split_decode_triton,
)
from tests.gpu_pool.kernels.triton_cases import DEVICE, PRODUCT_DTYPES, needs_triton

pytestmark = [needs_triton, pytest.mark.slow]

BLOCK_SIZE = 32
LENGTHS = [1, SPLIT_KEYS, SPLIT_KEYS + 1, 3 * SPLIT_KEYS - 5]


def create_step(
    heads: tuple[int, int, int], dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, KV memory, block tables and lengths of one sequence per entry of `LENGTHS`."""
    num_heads, num_kv_heads, head_dim = heads
    generator = torch.Generator().manual_seed(11)
    num_blocks = -(-max(LENGTHS) // BLOCK_SIZE)
    total = num_blocks * len(LENGTHS)
    tables = torch.randperm(total, generator=generator).view(len(LENGTHS), num_blocks)
    slots = torch.randn(total * BLOCK_SIZE, 2 * num_kv_heads * head_dim, generator=generator)
    q = torch.randn(len(LENGTHS), num_heads, head_dim, generator=generator)
    lengths = torch.tensor(LENGTHS, dtype=torch.int32, device=DEVICE)
    return (
        q.to(DEVICE, dtype),
        slots.to(DEVICE, dtype),
        tables.to(DEVICE, torch.int32),
        lengths,
    )


def create_layout(heads: tuple[int, int, int], window: int = 0, cap: float = 0.0) -> PagedLayout:
    """The only layer."""
    return PagedLayout(0, 1, BLOCK_SIZE, heads[1], heads[2] ** -0.5, window, cap)


@pytest.mark.parametrize("dtype", PRODUCT_DTYPES)
@pytest.mark.parametrize(("window", "soft_cap"), [(0, 0.0), (600, 0.0), (40, 4.0)])
@pytest.mark.parametrize("heads", [(8, 2, 64), (5, 5, 24)])
def test_the_kernel_agrees_with_the_reference(
    heads: tuple[int, int, int], window: int, soft_cap: float, dtype: torch.dtype
) -> None:
    q, slots, tables, lengths = create_step(heads, dtype)
    layout = create_layout(heads, window, soft_cap)
    expected = split_decode_reference(q, slots, tables, lengths, layout)
    actual = split_decode_triton(q, slots, tables, lengths, layout, 4 * SPLIT_KEYS)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def test_a_sequence_depends_neither_on_neighbours_nor_on_the_grid() -> None:
    heads = (4, 2, 32)
    q, slots, tables, lengths = create_step(heads, torch.float32)
    layout = create_layout(heads)
    whole = split_decode_triton(q, slots, tables, lengths, layout, 8 * SPLIT_KEYS)
    for index, length in enumerate(LENGTHS):
        part = slice(index, index + 1)
        alone = split_decode_triton(
            q[part], slots, tables[part], lengths[part], layout, max(length, 1)
        )
        assert torch.equal(alone, whole[part])
