"""Whose each block of a KV group is, as far as plans have told.

A second opinion on the scheduler's books: a block comes with a tag that grows whenever it changes
hands, and a table whose tags are no longer those known here would read another sequence's content.
Must not know how blocks are handed out. Read next: `sequence_row`, `model_runner`.
"""

from collections.abc import Sequence

import numpy as np

from gpu_pool.attention.kv_cache import Int64Array
from gpu_pool.plan import BlockId


class BlockTags:
    """The newest tag of every block of one group, and how many tables hold it."""

    __slots__ = ("_num_holders", "_tags", "is_suspect")

    def __init__(self, num_blocks: int) -> None:
        """No block has been handed out."""
        self._tags: Int64Array = np.zeros(num_blocks, dtype=np.int64)
        self._num_holders: Int64Array = np.zeros(num_blocks, dtype=np.int64)
        self.is_suspect = False
        """A block was handed out while a table held it, twice at once, or under a tag that is not
        its newest: some table may disagree. Else all agree, and none need be looked at."""

    def learn(self, block_ids: Sequence[BlockId], tags: Sequence[int]) -> None:
        """Takes in the tags of blocks that a table is given; an older one changes nothing."""
        index = np.array(block_ids, dtype=np.int64)
        known = self._tags[index]
        is_shared = self._num_holders[index] > 0
        np.maximum.at(self._tags, index, tags)
        is_old = self._tags[index] != tags
        self.is_suspect |= bool((((known != tags) & is_shared) | is_old).any())

    def hold(self, block_ids: Int64Array) -> None:
        """A table holds these blocks, which are distinct, from now on."""
        self._num_holders[block_ids] += 1

    def let_go(self, block_ids: Int64Array) -> None:
        """A table holds these blocks no longer."""
        self._num_holders[block_ids] -= 1

    def agree(self, block_ids: Int64Array, tags: Int64Array) -> bool:
        """True when none of the blocks has changed hands since it came with its tag."""
        return bool((self._tags[block_ids] == tags).all())
