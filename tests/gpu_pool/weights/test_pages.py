"""Pages really go and come back: measured by what the system says of this process."""

import mmap
import re
from pathlib import Path

import torch

from gpu_pool.weights.pages import discard_pages

NUM_BYTES = 64 << 20


def read_resident_bytes() -> int:
    text = Path("/proc/self/smaps_rollup").read_text()
    found = re.search(r"^Rss:\s+(\d+) kB", text, re.MULTILINE)
    assert found
    return int(found[1]) * 1024


def test_discarded_pages_leave_the_process_and_read_as_zeros() -> None:
    tensor = torch.ones(NUM_BYTES, dtype=torch.uint8)
    held = read_resident_bytes()
    given = discard_pages(tensor.data_ptr(), NUM_BYTES)
    assert NUM_BYTES - 2 * mmap.PAGESIZE < given <= NUM_BYTES
    assert held - read_resident_bytes() > 0.9 * NUM_BYTES
    assert int(tensor.sum()) == NUM_BYTES - given
    tensor.fill_(1)
    assert abs(read_resident_bytes() - held) < 0.1 * NUM_BYTES


def test_a_range_without_a_whole_page_is_left_alone() -> None:
    tensor = torch.ones(100, dtype=torch.uint8)
    assert discard_pages(tensor.data_ptr(), 100) == 0
    assert int(tensor.sum()) == 100
