"""The books of the block pool: counted references, least recent reuse, tags that never repeat."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from contracts.errors import InvariantBroken, OutOfBlocks
from contracts.ids import AccountId
from gpu_pool.kv.block_pool import BlockPool
from gpu_pool.plan import BlockId

A, B = AccountId("a" * 32), AccountId("b" * 32)


def create_pool(num_blocks: int) -> BlockPool:
    return BlockPool(num_blocks)


def test_a_pool_hands_out_every_block_once_and_then_no_more() -> None:
    pool = create_pool(3)
    assert sorted(pool.allocate(3, A)) == [0, 1, 2]
    with pytest.raises(OutOfBlocks):
        pool.allocate(1, A)


def test_a_refused_allocation_takes_nothing() -> None:
    pool = create_pool(3)
    with pytest.raises(OutOfBlocks):
        pool.allocate(4, A)
    assert pool.num_free == 3
    pool.check(held=[])


def test_a_shared_block_is_free_only_when_its_last_user_has_left() -> None:
    pool = create_pool(1)
    (block_id,) = pool.allocate(1, A)
    pool.share(block_id)
    pool.release([block_id])
    assert pool.num_free == 0
    pool.release([block_id])
    assert pool.num_free == 1


def test_a_free_block_keeps_its_content_until_it_is_handed_out_again() -> None:
    pool = create_pool(2)
    (block_id,) = pool.allocate(1, A)
    tag = pool.mark_cached(block_id, A)
    pool.release([block_id])
    assert pool.is_current(block_id, tag)
    pool.share(block_id)  # found again
    assert pool.is_current(block_id, tag)
    pool.release([block_id])
    pool.allocate(2, A)
    assert not pool.is_current(block_id, tag)


def test_the_cached_block_that_was_used_last_survives_longest() -> None:
    pool = create_pool(3)
    blocks = pool.allocate(3, A)
    for block_id in blocks:
        pool.mark_cached(block_id, A)
    pool.release(blocks)
    pool.share(blocks[0])
    pool.release([blocks[0]])
    assert pool.allocate(3, A) == (blocks[1], blocks[2], blocks[0])


def test_a_block_that_got_other_content_is_no_longer_kept_for_the_former() -> None:
    pool = create_pool(2)
    former, kept = pool.allocate(2, A)
    pool.mark_cached(former, A)
    pool.release([former])
    pool.allocate(1, A)
    pool.mark_cached(kept, A)
    pool.release([kept])
    pool.release([former])
    assert pool.allocate(1, A) == (former,)


def test_releasing_a_block_that_nobody_uses_is_a_defect() -> None:
    pool = create_pool(1)
    with pytest.raises(InvariantBroken):
        pool.release([BlockId(0)])


def test_the_check_sees_a_block_that_leaked() -> None:
    pool = create_pool(2)
    held = pool.allocate(1, A)
    pool.check(held)
    with pytest.raises(AssertionError):
        pool.check(held=[])
    with pytest.raises(AssertionError):
        pool.check([*held, *held])


def test_a_wiped_block_is_not_found_again_and_is_to_be_zeroed_once() -> None:
    pool = create_pool(2)
    (block_id,) = pool.allocate(1, A)
    tag = pool.mark_cached(block_id, A)
    pool.share(block_id)
    pool.release([block_id], wipes=True)
    assert pool.is_current(block_id, tag)
    assert not pool.has_wiped  # somebody still reads it
    pool.release([block_id], wipes=True)
    assert not pool.is_current(block_id, tag)
    assert pool.take_wiped() == (block_id,)
    assert pool.take_wiped() == ()


def test_an_account_cannot_have_the_floor_of_another() -> None:
    pool = create_pool(8)
    pool.activate(A)
    blocks = pool.allocate(4, A)
    for block_id in blocks:
        pool.mark_cached(block_id, A)
    pool.release(blocks)
    assert pool.count_available(B) == 4
    pool.allocate(4, B)
    with pytest.raises(OutOfBlocks):
        pool.allocate(1, B)
    assert pool.allocate(1, B, takes_floors=True) == blocks[:1]


class PoolMachine(RuleBasedStateMachine):
    """The pool beside a model that writes everything down."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = create_pool(6)
        self.held: list[BlockId] = []
        self.free_cached: list[BlockId] = []
        self.cached: dict[BlockId, int] = {}
        self.seen: set[tuple[BlockId, int]] = set()

    @rule(count=st.integers(0, 4))
    def allocate(self, count: int) -> None:
        if count > self.pool.num_free:
            with pytest.raises(OutOfBlocks):
                self.pool.allocate(count, A)
            return
        num_empty = self.pool.num_free - len(self.free_cached)
        reused = self.free_cached[: max(0, count - num_empty)]
        blocks = self.pool.allocate(count, A)
        assert set(reused) == set(blocks) & set(self.free_cached)
        del self.free_cached[: len(reused)]
        for block_id in blocks:
            if block_id in self.cached:
                assert not self.pool.is_current(block_id, self.cached.pop(block_id))
        self.held += blocks

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        block_id = data.draw(st.sampled_from(self.held))
        self.pool.share(block_id)
        self.held.append(block_id)

    @precondition(lambda self: self.free_cached)
    @rule(data=st.data())
    def revive(self, data: st.DataObject) -> None:
        block_id = data.draw(st.sampled_from(self.free_cached))
        assert self.pool.is_current(block_id, self.cached[block_id])
        self.pool.share(block_id)
        self.free_cached.remove(block_id)
        self.held.append(block_id)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def mark_cached(self, data: st.DataObject) -> None:
        block_id = data.draw(st.sampled_from(self.held))
        tag = self.pool.mark_cached(block_id, A)
        assert self.cached.get(block_id, tag) == tag
        assert block_id in self.cached or (block_id, tag) not in self.seen
        self.cached[block_id] = tag
        self.seen.add((block_id, tag))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        block_id = data.draw(st.sampled_from(self.held))
        self.pool.release([block_id])
        self.held.remove(block_id)
        if block_id not in self.held and block_id in self.cached:
            self.free_cached.append(block_id)

    @invariant()
    def books_are_right(self) -> None:
        self.pool.check(self.held)
        assert self.pool.num_free == 6 - len(set(self.held))


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPoolMachine = PoolMachine.TestCase
