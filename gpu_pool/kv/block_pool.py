"""Who uses which block: reference counts, reuse, tags.

Owns the blocks of one model; must not know what is in them (`prefix_cache` does). A block whose
last user leaves stays as it is until it is handed out again, so its content can still be shared.
Read next: `eviction` (what is handed out first), `prefix_cache`.
"""

from collections import Counter
from collections.abc import Iterable

from contracts.errors import InvariantBroken, OutOfBlocks
from gpu_pool.kv.block import Block
from gpu_pool.kv.eviction import EvictionPolicy
from gpu_pool.plan import BlockId


class BlockPool:
    """All blocks of a model. Every call costs the same however many there are."""

    def __init__(self, num_blocks: int, eviction: EvictionPolicy) -> None:
        """`num_blocks` free blocks; `eviction` must be empty and belongs to the pool from here."""
        self._blocks = [Block(BlockId(index)) for index in range(num_blocks)]
        self._free = eviction
        for block in reversed(self._blocks):  # the last one added is the first one out
            self._free.add(block)

    @property
    def num_blocks(self) -> int:
        """All blocks, free or not."""
        return len(self._blocks)

    @property
    def num_free(self) -> int:
        """Blocks that can be handed out, cached ones without a user included."""
        return len(self._free)

    def allocate(self, count: int) -> tuple[BlockId, ...]:
        """`count` blocks with one user, new tags and no content of value.

        Raises: `OutOfBlocks` when fewer are free; nothing has changed then.
        """
        if count > len(self._free):
            raise OutOfBlocks(
                f"{count} blocks of KV memory are needed, {len(self._free)} are free."
            )
        return tuple(self._renew(self._free.pop()) for _ in range(count))

    def share(self, block_id: BlockId) -> None:
        """Adds a user to a block, content untouched; a free one stops being free."""
        block = self._blocks[block_id]
        if block.num_users == 0:
            self._free.remove(block)
        block.num_users += 1

    def release(self, block_ids: Iterable[BlockId]) -> None:
        """Takes one user from each block.

        Pass a sequence's blocks last first: the far end of a prefix is then reused before its
        start, without which it could not be found anyway.
        Raises: `InvariantBroken` when a block has no user.
        """
        for block_id in block_ids:
            block = self._blocks[block_id]
            if block.num_users == 0:
                raise InvariantBroken(f"Block {block_id} was released more often than it was used.")
            block.num_users -= 1
            if block.num_users == 0:
                self._free.add(block)

    def mark_cached(self, block_id: BlockId) -> int:
        """Says that the content can be found from now on; returns the tag it is valid under."""
        block = self._blocks[block_id]
        block.is_cached = True
        return block.tag

    def is_current(self, block_id: BlockId, tag: int) -> bool:
        """True while the block still holds what it held under `tag`."""
        return self._blocks[block_id].tag == tag

    def count_free(self, block_ids: Iterable[BlockId]) -> int:
        """How many of `block_ids` have no user."""
        return sum(self._blocks[block_id].num_users == 0 for block_id in block_ids)

    def check(self, held: Iterable[BlockId]) -> None:
        """Asserts that the books are right; `held` are the blocks of all tables, with repeats."""
        users = Counter(held)
        for block in self._blocks:
            assert block.num_users == users[block.block_id], f"{block} has {users[block.block_id]}"
        free = [block.block_id for block in self._free]
        unused = [block.block_id for block in self._blocks if block.num_users == 0]
        assert sorted(free) == unused, f"free list {free}, unused {unused}"
        assert len(self._free) == len(free), "the free list miscounts"

    @staticmethod
    def _renew(block: Block) -> BlockId:
        """Makes a free block somebody's new one."""
        block.num_users = 1
        block.tag += 1
        block.is_cached = False
        return block.block_id
