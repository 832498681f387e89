"""Pages really go and come back: measured by what the system says of this process."""

import mmap

import torch

from gpu_pool.weights.cpu_memory import locate
from gpu_pool.weights.pages import Span, discard_pages
from tests.gpu_pool.weights.resident import read_resident_bytes

NUM_BYTES = 64 << 20


def test_discarded_pages_leave_the_process_and_read_as_zeros() -> None:
    tensor = torch.ones(NUM_BYTES, dtype=torch.uint8)
    held = read_resident_bytes()
    given = discard_pages(locate(tensor))
    assert NUM_BYTES - 2 * mmap.PAGESIZE < given <= NUM_BYTES
    assert held - read_resident_bytes() > 0.9 * NUM_BYTES
    assert int(tensor.sum()) == NUM_BYTES - given
    tensor.fill_(1)
    assert abs(read_resident_bytes() - held) < 0.1 * NUM_BYTES


def test_a_range_without_a_whole_page_is_left_alone() -> None:
    tensor = torch.ones(100, dtype=torch.uint8)
    assert discard_pages(locate(tensor)) == 0
    assert int(tensor.sum()) == 100


def test_the_whole_pages_of_a_span_lie_inside_it() -> None:
    page = mmap.PAGESIZE
    assert Span(page + 1, 3 * page).trim() == Span(2 * page, 2 * page)
    assert Span(page, page).trim() == Span(page, page)
    assert Span(page + 1, page).trim().num_bytes == 0
