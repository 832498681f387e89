"""In which order free blocks are given new content.

Owns the order alone; must not know keys or sequences. Blocks without cached content go first, then
the least recently used. A policy that leaves every active account a floor takes the place of
`LruEviction` behind the same four methods.
Read next: `block_pool`, its only caller.
"""

from collections.abc import Iterator
from typing import Protocol

from gpu_pool.kv.block import Block
from gpu_pool.plan import BlockId


class EvictionPolicy(Protocol):
    """Holds the free blocks and chooses among them."""

    def add(self, block: Block) -> None:
        """Takes in a block that nobody uses any more."""
        ...

    def remove(self, block: Block) -> None:
        """Lets go of a block that is used again with its content."""
        ...

    def pop(self) -> Block:
        """The block to reuse next, removed. Only called while there is one."""
        ...

    def __len__(self) -> int:
        """Number of free blocks."""
        ...

    def __iter__(self) -> Iterator[Block]:
        """The free blocks, next to be reused first."""
        ...


class LruEviction:
    """Least recently used first, in constant time: a ring of links through the blocks."""

    def __init__(self) -> None:
        """An empty ring."""
        self._ring = Block(BlockId(-1))  # newer than the newest and older than the oldest
        self._num_blocks = 0

    def add(self, block: Block) -> None:
        """Takes in `block`: as the newest if cached, else as the next to be reused."""
        older = self._ring.older if block.is_cached else self._ring
        block.older, block.newer = older, older.newer
        older.newer.older = block
        older.newer = block
        self._num_blocks += 1

    def remove(self, block: Block) -> None:
        """Lets go of `block`, wherever it stands."""
        block.older.newer, block.newer.older = block.newer, block.older
        block.older = block.newer = block
        self._num_blocks -= 1

    def pop(self) -> Block:
        """The oldest block, removed."""
        block = self._ring.newer
        assert block is not self._ring, "no block is free"
        self.remove(block)
        return block

    def __len__(self) -> int:
        """Number of free blocks."""
        return self._num_blocks

    def __iter__(self) -> Iterator[Block]:
        """The free blocks, oldest first."""
        block = self._ring.newer
        while block is not self._ring:
            yield block
            block = block.newer
