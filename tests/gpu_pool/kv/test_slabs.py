"""Slabs of a pool come and go: never one that somebody uses, nor one of the model's own."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from contracts.errors import OutOfBlocks
from contracts.ids import AccountId
from gpu_pool.kv.block_pool import BlockPool
from gpu_pool.kv.prefix_index import PrefixIndex
from gpu_pool.plan import BlockId, KvSlabs

A, B = AccountId("a" * 32), AccountId("b" * 32)


def create_pool(num_own: int = 1) -> BlockPool:
    """Four slabs of two blocks."""
    return BlockPool(8, KvSlabs(2, num_own))


def open_all(pool: BlockPool) -> None:
    while pool.open_slab():
        pass


def test_at_first_only_its_own_blocks_are_there() -> None:
    pool = create_pool()
    assert (pool.num_blocks, pool.num_free) == (2, 2)
    with pytest.raises(OutOfBlocks):
        pool.allocate(3, A)


def test_a_slab_that_comes_can_be_handed_out() -> None:
    pool = create_pool()
    assert pool.open_slab() == 2
    assert sorted(pool.allocate(4, A)) == [0, 1, 2, 3]
    pool.check([BlockId(index) for index in range(4)])


def test_no_more_slabs_come_than_there_are() -> None:
    pool = create_pool()
    open_all(pool)
    assert pool.num_blocks == 8
    assert pool.open_slab() == 0


def test_its_own_slabs_stay() -> None:
    pool = create_pool(num_own=2)
    assert pool.close_slab(0) is None
    pool.open_slab()
    assert pool.close_slab(0) is not None
    assert pool.close_slab(0) is None
    assert pool.num_blocks == 4


def test_a_slab_with_a_user_stays() -> None:
    pool = create_pool()
    open_all(pool)
    held = pool.allocate(8, A)
    pool.release([block_id for block_id in held if block_id % 2])
    assert pool.close_slab(0) is None
    pool.release([BlockId(4)])
    assert pool.close_slab(0) == range(4, 6)


def test_the_slab_that_was_used_longest_ago_goes_first() -> None:
    pool = create_pool()
    open_all(pool)
    held = pool.allocate(8, A)
    for block_id in held:
        pool.mark_cached(block_id, A)
    pool.release(held)
    for block_id in (2, 6, 0, 4):
        pool.share(BlockId(block_id))
        pool.release([BlockId(block_id)])
    assert [pool.close_slab(0) for _ in range(4)] == [range(2, 4), range(6, 8), range(2), None]


def test_what_went_is_found_by_nobody_when_it_comes_back() -> None:
    pool = create_pool()
    open_all(pool)
    index = PrefixIndex(pool)
    held = pool.allocate(8, A)
    index.enter(b"key", BlockId(5), A)
    pool.release(held)
    assert index.find(b"key") == 5
    while pool.close_slab(0) is not None:
        pass
    assert index.find(b"key") is None
    open_all(pool)
    assert index.find(b"key") is None


def test_as_many_blocks_stay_free_as_are_kept() -> None:
    pool = create_pool()
    open_all(pool)
    pool.allocate(2, A)
    assert pool.close_slab(5) is None
    assert pool.close_slab(4) is not None


def test_floors_are_parts_of_what_is_always_there() -> None:
    """Half of two slabs is one account's, however many there are at the moment."""
    pool = create_pool(num_own=2)
    pool.activate(A)

    def leave_all() -> None:
        held = pool.allocate(pool.num_blocks, A)
        for block_id in held:
            pool.mark_cached(block_id, A)
        pool.release(held)

    leave_all()
    assert pool.count_available(B) == 2
    open_all(pool)
    leave_all()
    assert pool.count_available(B) == 6
    while pool.close_slab(0) is not None:
        pass
    pool.check([])
    assert (pool.num_blocks, pool.count_available(B)) == (4, 2)


class Slabs(RuleBasedStateMachine):
    """Any order of everything; after each move the books are right."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(24, KvSlabs(3, 2))
        self.held: list[BlockId] = []

    @rule(account_id=st.sampled_from([A, B]), count=st.integers(1, 5), is_kept=st.booleans())
    def allocate(self, account_id: AccountId, count: int, *, is_kept: bool) -> None:
        if count <= self.pool.count_available(account_id):
            held = self.pool.allocate(count, account_id)
            for block_id in held:
                if is_kept:
                    self.pool.mark_cached(block_id, account_id)
            self.held += held

    @precondition(lambda self: self.held)
    @rule(data=st.data(), wipes=st.booleans())
    def release(self, data: st.DataObject, *, wipes: bool) -> None:
        place = data.draw(st.integers(0, len(self.held) - 1))
        self.pool.release([self.held.pop(place)], wipes=wipes)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        block_id = data.draw(st.sampled_from(self.held))
        self.pool.share(block_id)
        self.held.append(block_id)

    @rule(account_id=st.sampled_from([A, B]))
    def activate(self, account_id: AccountId) -> None:
        self.pool.activate(account_id)

    @rule()
    def open(self) -> None:
        self.pool.open_slab()

    @rule(num_kept=st.integers(0, 6))
    def close(self, num_kept: int) -> None:
        blocks = self.pool.close_slab(num_kept)
        if blocks is not None:
            assert not set(blocks) & set(self.held)
            assert self.pool.num_free >= num_kept
            assert self.pool.num_blocks >= self.pool.num_own

    @invariant()
    def books_are_right(self) -> None:
        self.pool.check(self.held)


TestSlabs = Slabs.TestCase
TestSlabs.settings = settings(max_examples=200, stateful_step_count=40)
