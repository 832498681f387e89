"""The order in which free blocks are reused."""

from gpu_pool.kv.block import Block
from gpu_pool.kv.eviction import LruEviction
from gpu_pool.plan import BlockId


def create_blocks(count: int, *, is_cached: bool = True) -> list[Block]:
    return [Block(BlockId(index), is_cached=is_cached) for index in range(count)]


def test_the_least_recently_used_block_goes_first() -> None:
    eviction = LruEviction()
    blocks = create_blocks(3)
    for block in blocks:
        eviction.add(block)
    assert [eviction.pop() for _ in blocks] == blocks
    assert len(eviction) == 0


def test_a_block_without_cached_content_goes_before_all_others() -> None:
    eviction = LruEviction()
    first, second = create_blocks(2)
    empty = Block(BlockId(2))
    for block in (first, second, empty):
        eviction.add(block)
    assert list(eviction) == [empty, first, second]


def test_a_block_taken_out_of_the_middle_leaves_the_others_in_order() -> None:
    eviction = LruEviction()
    blocks = create_blocks(3)
    for block in blocks:
        eviction.add(block)
    eviction.remove(blocks[1])
    assert list(eviction) == [blocks[0], blocks[2]]
    eviction.add(blocks[1])
    assert list(eviction) == [blocks[0], blocks[2], blocks[1]]
