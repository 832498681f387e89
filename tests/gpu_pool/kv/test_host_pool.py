"""Host blocks that a plan still touches are nobody else's."""

import pytest

from gpu_pool.kv.host_pool import HostPool
from gpu_pool.plan import BlockId


def test_what_a_plan_frees_is_free_when_its_result_is_there() -> None:
    pool = HostPool(0, 2)
    taken = pool.move_out([BlockId(5), BlockId(6)])
    assert pool.num_free == 0
    pool.take_moves()
    pool.note_done()
    pool.move_in(taken, [BlockId(7), BlockId(8)])
    assert len(pool.take_moves().back) == 2
    assert pool.num_free == 0  # the plan clears them when it is carried out
    with pytest.raises(AssertionError):
        pool.reserve(1)
    pool.note_done()
    assert sorted(pool.reserve(2)) == sorted(taken)


def test_reserved_blocks_are_free_as_soon_as_they_are_given_back() -> None:
    pool = HostPool(0, 3)
    reserved = pool.reserve(2)
    pool.copy_out([BlockId(4)], reserved[:1])
    assert [move.host_id for move in pool.take_moves().copied] == [reserved[0]]
    pool.check(num_held=2)
    pool.give_back(reserved)
    assert pool.num_free == 3
