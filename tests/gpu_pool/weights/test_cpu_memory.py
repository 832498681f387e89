"""Tensors leave and come back to where they were, whatever their layout."""

import errno
import os
import threading
import time

import pytest
import torch
from torch import Tensor

from gpu_pool.large_pages import create_buffer
from gpu_pool.lull import Lull
from gpu_pool.weights import pages, pages_ahead
from gpu_pool.weights.cpu_memory import DroppedMemory, KeptMemory, locate
from gpu_pool.weights.pages import Span
from tests.gpu_pool.weights.resident import read_resident_bytes

PIECE_BYTES = 8 << 20


def create_tensors() -> list[Tensor]:
    """Less than a page, a few odd bytes, more than a piece, and one in oneDNN's layout."""
    sizes = (100, 5 * 4096 + 13, 2 * PIECE_BYTES + 4096 + 1)
    plain = [torch.randint(0, 256, (size,), dtype=torch.uint8) for size in sizes]
    return [*plain, torch.ops.mkldnn._reorder_linear_weight(torch.randn(512, 512), 64)]


def read_all(tensors: list[Tensor]) -> list[bytes]:
    return [bytes(locate(tensor).view()) for tensor in tensors]


@pytest.mark.parametrize("num_threads", [1, 3])
def test_weights_come_back_bit_by_bit_to_the_same_addresses(num_threads: int) -> None:
    tensors = create_tensors()
    content, spans = read_all(tensors), [locate(tensor) for tensor in tensors]
    memory = KeptMemory([tensors[:2], tensors[2:]], num_threads)
    before = read_resident_bytes()
    given = memory.leave()
    assert 0.99 * memory.num_bytes < given <= memory.num_bytes
    assert before - read_resident_bytes() > 0.9 * given
    assert read_all(tensors) != content  # the control: they really were away
    assert memory.come_back() == given
    assert read_all(tensors) == content
    assert [locate(tensor) for tensor in tensors] == spans


def test_a_packed_weight_multiplies_as_before() -> None:
    weight, x = torch.randn(256, 512), torch.randn(7, 512)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, 64)
    memory = KeptMemory([[packed]], 1)
    multiply = torch.ops.mkldnn._linear_pointwise
    before = multiply(x, packed, None, "none", [], "")
    memory.leave()
    memory.come_back()
    assert torch.equal(multiply(x, packed, None, "none", [], ""), before)


def test_kv_memory_comes_back_as_zeros_to_its_last_byte() -> None:
    tensors = [torch.ones(size, dtype=torch.uint8) for size in (10, 3 * 4096 + 5, 1 << 20)]
    memory = DroppedMemory(tensors)
    assert memory.leave() == memory.come_back()
    assert [int(tensor.sum()) for tensor in tensors] == [0, 0, 0]


@pytest.mark.parametrize("bytes_ahead", [0, 32 << 20, 1 << 30])
def test_memory_is_there_before_it_is_written_as_far_as_was_asked(bytes_ahead: int) -> None:
    num_bytes = 64 << 20
    buffers = [create_buffer(num_bytes // 2) for _ in range(2)]
    tensors = [torch.frombuffer(buffer, dtype=torch.uint8) for buffer in buffers]
    tensors[0][100] = 7
    before = read_resident_bytes()
    memory = DroppedMemory(tensors, bytes_ahead)
    memory._ahead.wait()
    wanted = min(bytes_ahead, num_bytes)
    assert abs(read_resident_bytes() - before - wanted) < 8 << 20
    assert int(tensors[0][100]) == 7  # what was written stays
    memory.leave()
    assert read_resident_bytes() - before < 8 << 20
    memory.close()


def test_nothing_is_taken_ahead_beside_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    is_taken = threading.Event()

    def populate(_: Span) -> bool:
        is_taken.set()
        return True

    monkeypatch.setattr(pages_ahead, "populate_pages", populate)
    tensor = torch.frombuffer(create_buffer(8 << 20), dtype=torch.uint8)
    lull = Lull(time.monotonic, quiet_s=0.01)
    lull.begin()
    memory = DroppedMemory([tensor], 8 << 20, lull)
    assert not is_taken.wait(0.1)
    lull.end()
    assert is_taken.wait(10)
    memory.close()


def test_no_more_is_taken_ahead_than_a_quarter_of_what_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Were it more, a control group's limit would kill who computes beside it."""
    limit, taken = 40 << 20, 0

    def populate(span: Span) -> bool:
        nonlocal taken
        taken += span.num_bytes
        return True

    monkeypatch.setattr(pages_ahead, "populate_pages", populate)
    monkeypatch.setattr(pages_ahead, "read_free_bytes", lambda: limit - taken)
    tensor = torch.frombuffer(create_buffer(64 << 20), dtype=torch.uint8)
    memory = DroppedMemory([tensor], 64 << 20)
    memory._ahead.wait()
    assert taken == limit // 4
    memory.close()


def test_a_sleep_ends_what_takes_memory_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    began, may_go_on = threading.Event(), threading.Event()
    spans: list[Span] = []

    def populate(span: Span) -> bool:
        spans.append(span)
        began.set()
        return may_go_on.wait(10)

    monkeypatch.setattr(pages_ahead, "populate_pages", populate)
    buffer = create_buffer(64 << 20)
    memory = DroppedMemory([torch.frombuffer(buffer, dtype=torch.uint8)], 64 << 20)
    assert began.wait(10)
    leaving = threading.Thread(target=memory.leave)
    leaving.start()
    leaving.join(0.1)
    assert leaving.is_alive()  # it waits for the page under way: afterwards nothing is taken
    may_go_on.set()
    leaving.join(10)
    assert not leaving.is_alive()
    assert len(spans) == 1


def test_a_system_that_cannot_be_asked_for_pages_gives_them_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pages, "_POPULATE_WRITE", 12345)
    tensor = torch.frombuffer(create_buffer(8 << 20), dtype=torch.uint8)
    memory = DroppedMemory([tensor], 8 << 20)
    memory._ahead.wait()
    tensor.fill_(1)
    memory.close()


def test_weights_that_find_no_room_on_the_host_are_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_file: int, _data: memoryview, _offset: int) -> int:
        raise OSError(errno.ENOSPC, "no room")

    memory = KeptMemory([[torch.ones(1 << 20)]], 1)
    monkeypatch.setattr(os, "pwrite", refuse)
    with pytest.raises(OSError, match="no room"):
        memory.leave()


def test_what_lies_on_the_host_goes_with_the_model() -> None:
    memory = KeptMemory([[torch.ones(1 << 20)]], 1)
    num_files = len(os.listdir("/proc/self/fd"))
    memory.leave()
    assert len(os.listdir("/proc/self/fd")) == num_files + 1
    memory.close()
    assert len(os.listdir("/proc/self/fd")) == num_files
