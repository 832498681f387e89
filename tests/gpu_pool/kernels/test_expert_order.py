"""Rows by expert: counted, sorted, and as a loop over experts would find them."""

import pytest
import torch
from torch import Tensor

from gpu_pool.kernels.expert_order import (
    ExpertOrder,
    HeldExperts,
    count_blocks,
    order_by_expert_reference,
    order_by_expert_triton,
)
from tests.gpu_pool.kernels.triton_cases import DEVICE, needs_triton

# Tokens, chosen, all experts, first held, held, rows of a block.
CASES = [
    (1, 1, 1, 0, 1, 16),
    (1, 4, 8, 0, 8, 16),
    (5, 2, 6, 3, 3, 16),
    (37, 3, 5, 0, 5, 16),
    (200, 2, 130, 0, 130, 32),
    (90, 4, 7, 2, 4, 64),
]


def draw_choices(num_tokens: int, num_chosen: int, num_experts: int) -> Tensor:
    """Different experts for each token, the last ones chosen by nobody."""
    generator = torch.Generator().manual_seed(num_tokens)
    used = max(num_chosen, num_experts - 1)
    rows = [torch.randperm(used, generator=generator)[:num_chosen] for _ in range(num_tokens)]
    return torch.stack(rows).to(DEVICE)


def list_rows(order: ExpertOrder) -> list[tuple[int, list[int]]]:
    """The expert and rows of each block that is needed."""
    blocks = zip(order.experts_B, order.firsts_B, order.ends_B, strict=True)
    return [
        (int(expert), order.rows_N[int(first) : int(end)].tolist())
        for expert, first, end in blocks
        if expert >= 0
    ]


@pytest.mark.parametrize("case", CASES)
def test_blocks_hold_each_experts_rows_in_order(case: tuple[int, ...]) -> None:
    num_tokens, num_chosen, num_experts, first, count, block_rows = case
    chosen = draw_choices(num_tokens, num_chosen, num_experts)
    held = HeldExperts(first, count, num_experts)
    expected: list[tuple[int, list[int]]] = []
    for expert in range(first, first + count):
        rows = [i for i, other in enumerate(chosen.flatten().tolist()) if other == expert]
        starts = range(0, len(rows), block_rows)
        expected += [(expert - first, rows[start : start + block_rows]) for start in starts]
    order = order_by_expert_reference(chosen, held, block_rows)
    assert list_rows(order) == expected
    assert sorted(order.rows_N.tolist()) == list(range(num_tokens * num_chosen))


@needs_triton
@pytest.mark.parametrize("case", CASES)
def test_the_kernel_agrees_with_the_reference(case: tuple[int, ...]) -> None:
    num_tokens, num_chosen, num_experts, first, count, block_rows = case
    chosen = draw_choices(num_tokens, num_chosen, num_experts)
    held = HeldExperts(first, count, num_experts)
    expected = order_by_expert_reference(chosen, held, block_rows)
    actual = order_by_expert_triton(chosen, held, block_rows)
    assert torch.equal(actual.rows_N, expected.rows_N)
    assert torch.equal(actual.experts_B, expected.experts_B)
    assert torch.equal(actual.firsts_B, expected.firsts_B)
    assert torch.equal(actual.ends_B, expected.ends_B)


@pytest.mark.parametrize("spread", ["all alike", "all different", "one more than a block each"])
def test_there_are_blocks_enough_however_rows_fall(spread: str) -> None:
    experts = {
        "all alike": [0] * 66,
        "all different": list(range(66)),
        "one more than a block each": [expert for expert in range(3) for _ in range(17)],
    }[spread]
    chosen = torch.tensor(experts)[:, None]
    order = order_by_expert_reference(chosen, HeldExperts(0, 66, 66), 16)
    placed = [row for _, rows in list_rows(order) for row in rows]
    assert sorted(placed) == list(range(len(experts)))
    assert len(order.experts_B) == count_blocks(len(experts), 66, 16)
