"""How long memory is that is to lie in large pages."""

import mmap

import pytest

from gpu_pool.large_pages import create_buffer, create_whole_pages

LARGE = 2 << 20


@pytest.mark.parametrize(
    ("wanted", "length"),
    [
        (1, 1),
        (LARGE - 1, LARGE),
        (LARGE, LARGE),
        (LARGE + 1, LARGE + 1),  # half of two pages would be waste
        (16 * LARGE - LARGE // 2, 16 * LARGE),
        (16 * LARGE + 1, 17 * LARGE),
    ],
)
def test_pages_are_filled_up_where_little_is_wasted(wanted: int, length: int) -> None:
    assert len(create_whole_pages(wanted)) == length
    assert len(create_buffer(wanted)) == wanted


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="there are no large pages here")
def test_it_reads_as_zeros_and_can_be_written() -> None:
    memory = create_whole_pages(3 * LARGE)
    assert memory[0] == memory[-1] == 0
    memory[LARGE] = 7
    assert memory[LARGE] == 7
