"""Tables and slots of a step's single tokens: the kernel against the reference."""

import pytest
import torch
from torch import Tensor

from gpu_pool.kernels.gather_tables import gather_tables_reference, gather_tables_triton
from tests.gpu_pool.kernels.triton_cases import DEVICE, needs_triton

BLOCK_SIZE = 16
BLOCK_SLOTS = 3 * BLOCK_SIZE
UNTOUCHED = -7


def gather(fill: object, tables: Tensor, rows: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """What is filled in, over memory that held something else."""
    out = torch.full((len(rows), tables.shape[1]), UNTOUCHED, dtype=torch.int32, device=DEVICE)
    slots = torch.full((len(rows),), UNTOUCHED, dtype=torch.int64, device=DEVICE)
    fill(tables, rows, positions, BLOCK_SIZE, BLOCK_SLOTS, out, slots)  # type: ignore[operator]
    return out, slots


@needs_triton
@pytest.mark.parametrize("num_columns", [1, 7, 1024, 1025, 2500])
def test_the_kernel_agrees_with_the_reference_as_far_as_contexts_go(num_columns: int) -> None:
    generator = torch.Generator().manual_seed(num_columns)
    tables = torch.randint(0, 1 << 30, (9, num_columns), generator=generator).int().to(DEVICE)
    rows = torch.tensor([8, 0, 3, 3, 5], dtype=torch.int32, device=DEVICE)
    most = num_columns * BLOCK_SIZE - 1
    positions = torch.tensor([0, most, most // 2, min(15, most), min(16, most)]).int().to(DEVICE)
    expected, slots = gather(gather_tables_reference, tables, rows, positions)
    actual, actual_slots = gather(gather_tables_triton, tables, rows, positions)
    assert actual_slots.tolist() == slots.tolist()
    for row, position in enumerate(positions.tolist()):
        held = position // BLOCK_SIZE + 1
        assert actual[row, :held].tolist() == expected[row, :held].tolist()
        assert set(actual[row, held:].tolist()) <= {UNTOUCHED}


def test_a_slot_is_that_of_the_token_in_its_block_beyond_32_bits() -> None:
    tables = torch.tensor([[5, 1 << 30]], dtype=torch.int32, device=DEVICE)
    rows = torch.zeros(2, dtype=torch.int32, device=DEVICE)
    positions = torch.tensor([3, 17], dtype=torch.int32, device=DEVICE)
    _, slots = gather(gather_tables_reference, tables, rows, positions)
    assert slots.tolist() == [5 * BLOCK_SLOTS + 3, (1 << 30) * BLOCK_SLOTS + 1]
