"""The books of the block pool: counted references, least recent reuse, tags that never repeat."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from contracts.errors import InvariantBroken, OutOfBlocks
from gpu_pool.kv.block_pool import BlockPool
from gpu_pool.kv.eviction import LruEviction
from gpu_pool.plan import BlockId


def create_pool(num_blocks: int) -> BlockPool:
    return BlockPool(num_blocks, LruEviction())


def test_a_pool_hands_out_every_block_once_and_then_no_more() -> None:
    pool = create_pool(3)
    assert sorted(pool.allocate(3)) == [0, 1, 2]
    with pytest.raises(OutOfBlocks):
        pool.allocate(1)


def test_a_refused_allocation_takes_nothing() -> None:
    pool = create_pool(3)
    with pytest.raises(OutOfBlocks):
        pool.allocate(4)
    assert pool.num_free == 3
    pool.check(held=[])


def test_a_shared_block_is_free_only_when_its_last_user_has_left() -> None:
    pool = create_pool(1)
    (block_id,) = pool.allocate(1)
    pool.share(block_id)
    pool.release([block_id])
    assert pool.num_free == 0
    pool.release([block_id])
    assert pool.num_free == 1


def test_a_free_block_keeps_its_content_until_it_is_handed_out_again() -> None:
    pool = create_pool(2)
    (block_id,) = pool.allocate(1)
    tag = pool.mark_cached(block_id)
    pool.release([block_id])
    assert pool.is_current(block_id, tag)
    pool.share(block_id)  # found again
    assert pool.is_current(block_id, tag)
    pool.release([block_id])
    pool.allocate(2)
    assert not pool.is_current(block_id, tag)


def test_the_cached_block_that_was_used_last_survives_longest() -> None:
    pool = create_pool(3)
    blocks = pool.allocate(3)
    for block_id in blocks:
        pool.mark_cached(block_id)
    pool.release(blocks)
    pool.share(blocks[0])
    pool.release([blocks[0]])
    assert pool.allocate(3) == (blocks[1], blocks[2], blocks[0])


def test_a_block_that_got_other_content_is_no_longer_kept_for_the_former() -> None:
    pool = create_pool(2)
    former, kept = pool.allocate(2)
    pool.mark_cached(former)
    pool.release([former])
    pool.allocate(1)
    pool.mark_cached(kept)
    pool.release([kept])
    pool.release([former])
    assert pool.allocate(1) == (former,)


def test_releasing_a_block_that_nobody_uses_is_a_defect() -> None:
    pool = create_pool(1)
    with pytest.raises(InvariantBroken):
        pool.release([BlockId(0)])


def test_the_check_sees_a_block_that_leaked() -> None:
    pool = create_pool(2)
    held = pool.allocate(1)
    pool.check(held)
    with pytest.raises(AssertionError):
        pool.check(held=[])
    with pytest.raises(AssertionError):
        pool.check([*held, *held])


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
                self.pool.allocate(count)
            return
        num_empty = self.pool.num_free - len(self.free_cached)
        reused = self.free_cached[: max(0, count - num_empty)]
        blocks = self.pool.allocate(count)
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
        tag = self.pool.mark_cached(block_id)
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
