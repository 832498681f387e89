"""An arena's memory goes and comes under the same addresses, over a device that keeps the rules."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from gpu_pool.weights import arena as arena_module
from gpu_pool.weights.arena import Arena
from tests.gpu_pool.weights.host_virtual_memory import HostVirtualMemory

DEVICE_BYTES = 8 << 20
SHAPES = ((3,), (100, 7), (1,), (300_000,), (5, 5, 5), (200_000,))


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena_module, "_CHUNK_BYTES", 1 << 17)


def fill(arena: Arena) -> list[Tensor]:
    tensors = [arena.create(shape, torch.float32) for shape in SHAPES]
    for number, tensor in enumerate(tensors):
        tensor.copy_(torch.randn(tensor.shape) + number)
    return tensors


def test_weights_come_back_to_their_addresses_and_the_device_gets_all_of_its_memory() -> None:
    memory = HostVirtualMemory(DEVICE_BYTES)
    arena = Arena(memory, 4 << 20, keeps=True)
    tensors = fill(arena)
    content, places = [tensor.clone() for tensor in tensors], [t.data_ptr() for t in tensors]
    assert memory.num_free == DEVICE_BYTES - arena.num_bytes
    for _ in range(100):
        assert arena.leave() == arena.num_bytes
        assert memory.num_free == DEVICE_BYTES
        assert not any(torch.equal(*pair) for pair in zip(tensors, content, strict=True))
        assert arena.come_back() == arena.num_bytes
        assert all(torch.equal(*pair) for pair in zip(tensors, content, strict=True))
    assert [tensor.data_ptr() for tensor in tensors] == places
    assert memory.num_copied_out == arena.num_bytes  # once: weights do not change
    assert len(memory.pinned) == 1
    arena.close()
    assert memory.num_free == DEVICE_BYTES
    assert memory.pinned == set()


def test_kv_memory_comes_back_as_zeros_and_takes_nothing_of_the_host() -> None:
    memory = HostVirtualMemory(DEVICE_BYTES)
    arena = Arena(memory, 4 << 20, keeps=False)
    tensors = fill(arena)
    arena.leave()
    arena.come_back()
    assert not any(tensor.any() for tensor in tensors)
    assert arena.host_bytes == 0


def test_tensors_do_not_overlap_and_begin_where_kernels_want_them() -> None:
    arena = Arena(HostVirtualMemory(DEVICE_BYTES), 4 << 20, keeps=True)
    ranges = sorted((t.data_ptr(), t.data_ptr() + t.nbytes) for t in fill(arena))
    assert all(end <= start for (_, end), (start, _) in pairwise(ranges))
    assert all((start - ranges[0][0]) % 512 == 0 for start, _ in ranges)


def test_a_wake_without_room_leaves_nothing_behind_and_may_be_tried_again() -> None:
    memory = HostVirtualMemory(DEVICE_BYTES)
    arena = Arena(memory, 4 << 20, keeps=True)
    tensors = fill(arena)
    content = [tensor.clone() for tensor in tensors]
    arena.leave()
    memory.num_free = arena.num_bytes // 2  # another model has come meanwhile
    with pytest.raises(OSError, match="OUT_OF_MEMORY"):
        arena.come_back()
    assert memory.mapped == {}
    memory.num_free = DEVICE_BYTES
    arena.come_back()
    assert all(torch.equal(*pair) for pair in zip(tensors, content, strict=True))


def test_a_model_without_room_is_refused_while_it_is_loaded() -> None:
    arena = Arena(HostVirtualMemory(1 << 20), 4 << 20, keeps=True)
    with pytest.raises(OSError, match="OUT_OF_MEMORY"):
        fill(arena)
    arena.close()


def test_a_sleeping_arena_can_be_closed() -> None:
    memory = HostVirtualMemory(DEVICE_BYTES)
    arena = Arena(memory, 4 << 20, keeps=True)
    fill(arena)
    arena.leave()
    arena.close()
    assert memory.num_free == DEVICE_BYTES
