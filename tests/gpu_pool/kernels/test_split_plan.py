"""Where contexts are cut: the kernel against the reference, and what the reference promises."""

import pytest
import torch

from gpu_pool.kernels.split_plan import (
    MAX_SPLITS,
    MIN_SPLIT_KEYS,
    SplitPlan,
    choose_split_keys,
    count_items,
    count_splits,
    plan_splits_reference,
    plan_splits_triton,
)
from tests.gpu_pool.kernels.triton_cases import DEVICE, needs_triton

MOST = MAX_SPLITS * MIN_SPLIT_KEYS
LENGTHS = [1, 255, 256, 257, 0, MOST, MOST + 1, 131_072, 131_071, 40]
REACHES = [(0, False), (40, False), (600, False), (MOST + 9, False), (48, True), (4096, True)]


def list_items(plan: SplitPlan) -> list[list[int]]:
    """The items that are filled in."""
    return plan.items_Z3[: int(plan.bounds_B[-1])].tolist()


@needs_triton
@pytest.mark.parametrize(("window", "is_chunked"), REACHES)
@pytest.mark.parametrize("count", [1, 3, len(LENGTHS)])
def test_the_kernel_agrees_with_the_reference(count: int, window: int, is_chunked: bool) -> None:
    lengths = torch.tensor(LENGTHS[:count], dtype=torch.int32, device=DEVICE)
    expected = plan_splits_reference(lengths, 1 << 17, window, is_chunked)
    actual = plan_splits_triton(lengths, 1 << 17, window, is_chunked)
    assert actual.items_Z3.shape == expected.items_Z3.shape
    assert actual.bounds_B.tolist() == expected.bounds_B.tolist()
    assert list_items(actual) == list_items(expected)


@pytest.mark.parametrize(("window", "is_chunked"), REACHES)
def test_items_cover_what_the_last_token_sees_once(window: int, is_chunked: bool) -> None:
    lengths = torch.tensor(LENGTHS, dtype=torch.int32)
    plan = plan_splits_reference(lengths, 1 << 17, window, is_chunked)
    bounds = plan.bounds_B.tolist()
    for sequence, length in enumerate(LENGTHS):
        last = length - 1
        seen = [
            key
            for key in range(length)
            if not window
            or (key // window == last // window if is_chunked else last - key < window)
        ]
        items = list_items(plan)[bounds[sequence] : bounds[sequence + 1]]
        assert {item[0] for item in items} <= {sequence}
        assert [key for _, first, end in items for key in range(first, end)] == seen
        assert len(items) <= MAX_SPLITS


@pytest.mark.parametrize("num_seen", [1, 256, 257, MOST - 1, MOST, MOST + 1, 3 * MOST, 1 << 20])
def test_room_is_bounded_and_suffices(num_seen: int) -> None:
    assert count_splits(num_seen) <= count_items(1, num_seen, 0) <= MAX_SPLITS
    assert count_splits(num_seen) * choose_split_keys(num_seen) >= num_seen
    assert count_items(7, 1 << 17, 40) == 7


def test_a_context_longer_than_was_said_is_refused() -> None:
    with pytest.raises(AssertionError, match="max_length"):
        plan_splits_reference(torch.tensor([257]), 256, 0, False)
