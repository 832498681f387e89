"""Weights come back in the order of their use, and nobody takes what has not come."""

import threading
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from gpu_pool.weights import arena as arena_module
from gpu_pool.weights.arena import Arena
from gpu_pool.weights.cpu_memory import KeptMemory
from gpu_pool.weights.landing import ThreadedLanding
from gpu_pool.weights.tensor_search import find_portions
from tests.gpu_pool.weights.host_virtual_memory import HostVirtualMemory
from tests.gpu_pool.weights.slow_copies import SlowCopies

NUM_BYTES = 1 << 20


def create_portions(num_portions: int) -> list[list[Tensor]]:
    return [[torch.full((NUM_BYTES,), 1 + n, dtype=torch.uint8)] for n in range(num_portions)]


def test_a_portion_is_there_while_later_ones_are_not() -> None:
    portions, copies = create_portions(4), SlowCopies()
    memory = KeptMemory(portions, 1, copies.read)
    given = memory.leave()
    landing = memory.begin_return()
    copies.let_through(2)
    landing.wait_for(1)
    assert all(bool((portions[n][0] == 1 + n).all()) for n in (0, 1))
    assert not portions[3][0].eq(4).all()  # the control: it is on its way still
    copies.let_through(2)
    landing.finish()
    assert all(bool((portion[0] == 1 + n).all()) for n, portion in enumerate(portions))
    assert landing.num_bytes == given
    memory.close()


@pytest.mark.parametrize("num_read", [0, -1])
def test_a_copy_that_ends_early_is_told_whenever_its_portion_or_a_later_one_is_asked_for(
    num_read: int,
) -> None:
    copies = SlowCopies(num_broken=1, broken_read=num_read)
    memory = KeptMemory(create_portions(3), 1, copies.read)
    memory.leave()
    landing = memory.begin_return()
    copies.let_through(3)
    landing.wait_for(0)  # the control: it is there
    for portion in (1, 2, 1):
        with pytest.raises(OSError, match="vanished from the host"):
            landing.wait_for(portion)
    with pytest.raises(OSError, match="vanished"):
        landing.finish()
    memory.close()


def test_a_landing_that_is_given_up_writes_no_more_and_leaves_no_thread() -> None:
    portions, copies = create_portions(8), SlowCopies()
    memory = KeptMemory(portions, 1, copies.read)
    memory.leave()
    before = threading.active_count()
    memory.begin_return()
    assert threading.active_count() > before
    copies.let_through(1)
    copies.open_all()
    memory.close()
    assert threading.active_count() == before


def test_what_ends_a_landing_is_called_once_and_not_after_a_failure() -> None:
    ended: list[str] = []

    def fail() -> int:
        raise OSError("broken")

    whole = ThreadedLanding([[lambda: 1], [lambda: 2]], 1, lambda: ended.append("whole"))
    whole.finish()
    whole.finish()
    broken = ThreadedLanding([[lambda: 1], [fail]], 1, lambda: ended.append("broken"))
    with pytest.raises(OSError, match="broken"):
        broken.finish()
    broken.abandon()
    assert ended == ["whole"]
    assert whole.num_bytes == 3


def test_tensors_belong_to_the_first_part_that_needs_them() -> None:
    shared, first, second, outer = (torch.ones(n) for n in (1, 2, 3, 4))
    parts = [[first, shared], [shared, second, first[:1]]]
    portions = find_portions({"outer": outer, "parts": parts}, parts)
    sizes = [sorted(tensor.numel() for tensor in portion) for portion in portions]
    assert sizes == [[1, 2, 4], [3]]
    assert len(find_portions(parts, ())) == 1


class TestArena:
    """A device fills chunks by itself: here as late as it may."""

    @pytest.fixture(autouse=True)
    def small_chunks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(arena_module, "_CHUNK_BYTES", 1 << 16)

    def create(self, memory: HostVirtualMemory) -> tuple[Arena, Sequence[Tensor]]:
        """Three tensors of a chunk each; the last is needed first, as an embedding is."""
        arena = Arena(memory, 1 << 20, keeps=True)
        tensors = [arena.create((1 << 14,), torch.float32).fill_(n) for n in range(3)]
        arena.set_order([[tensors[2], torch.ones(3)], [tensors[0]], [tensors[1]]])
        arena.leave()
        return arena, tensors

    def test_chunks_come_in_the_order_of_their_use(self) -> None:
        arena, tensors = self.create(HostVirtualMemory(1 << 20))
        landing = arena.begin_return()
        for portion, number in enumerate((2, 0, 1)):
            assert not tensors[number].eq(number).all()  # the control: nobody has waited
            landing.wait_for(portion)
            assert tensors[number].eq(number).all()
        landing.finish()
        arena.close()

    def test_a_sleep_in_the_middle_of_a_landing_waits_for_it(self) -> None:
        memory = HostVirtualMemory(1 << 20)
        arena, tensors = self.create(memory)
        arena.begin_return().wait_for(0)
        arena.leave()  # the double refuses to take memory away under a copy
        assert memory.mapped == {}
        arena.come_back()
        assert all(tensor.eq(number).all() for number, tensor in enumerate(tensors))
        arena.close()

    def test_a_landing_without_room_leaves_nothing_behind(self) -> None:
        memory = HostVirtualMemory(1 << 20)
        arena, tensors = self.create(memory)
        memory.num_free = arena.num_bytes // 2
        with pytest.raises(OSError, match="OUT_OF_MEMORY"):
            arena.begin_return()
        assert memory.mapped == {}
        memory.num_free = 1 << 20
        arena.begin_return().finish()
        assert all(tensor.eq(number).all() for number, tensor in enumerate(tensors))
        arena.close()
