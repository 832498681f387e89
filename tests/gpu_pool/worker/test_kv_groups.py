"""Groups that keep a ring get fewer blocks, never too few; bytes asked for are bytes taken."""

import pytest
import torch

from gpu_pool.attention.kv_cache import KvShape
from gpu_pool.attention.reach import Reach
from gpu_pool.plan import KvGroupKind
from gpu_pool.worker.kv_groups import KvDivision

FULL = Reach(KvGroupKind.FULL)
SLIDING = Reach(KvGroupKind.SLIDING_WINDOW, 1024)
CHUNKED = Reach(KvGroupKind.CHUNKED, 8192)
SHAPE = KvShape(4, 16, 2, 64)


def divide(*reaches: Reach) -> KvDivision:
    return KvDivision((SHAPE,) * len(reaches), reaches, torch.float32)


def measure(division: KvDivision, num_blocks: int) -> int:
    """Bytes of all groups."""
    return sum(
        division.count_blocks(place, num_blocks) * shape.block_bytes(torch.float32)
        for place, shape in enumerate(division.shapes)
    )


def test_a_window_takes_a_part_and_a_long_chunk_as_much_as_everything() -> None:
    division = divide(FULL, SLIDING, CHUNKED)
    counts = [division.count_blocks(place, 1000) for place in range(3)]
    assert counts == [1000, 375, 1000]


@pytest.mark.parametrize("reaches", [(FULL,), (FULL, SLIDING), (SLIDING, SLIDING), (FULL, CHUNKED)])
def test_all_groups_together_take_what_was_asked_for(reaches: tuple[Reach, ...]) -> None:
    division = divide(*reaches)
    asked = 1 << 30
    num_blocks = asked // division.block_bytes
    assert 0.98 * asked < measure(division, num_blocks) <= asked


def test_windows_make_room_for_more_tokens() -> None:
    """The control: without rings the same bytes hold fewer."""
    assert divide(FULL, SLIDING).block_bytes < divide(FULL, FULL).block_bytes


def test_a_ring_is_never_smaller_than_a_window_and_a_step() -> None:
    division = divide(FULL, SLIDING)
    assert division.count_blocks(1, 100) == (1024 + 256) // 16 + 1
    assert division.count_blocks(1, 50) == 50
