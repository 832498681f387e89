"""Finds blocks by the keys of their contents.

Owns the index of one group from key to block; must not know sequences. The pool never tells it of a
reuse: an entry is valid while the block's tag is the one it was registered under, and is checked
at every look-up. Only full blocks are entered, so a shared block is never written.
Read next: `block_hash` (what a key covers), `group_memory` (the caller).
"""

from collections.abc import Sequence

from contracts.ids import AccountId
from gpu_pool.kv.block_pool import BlockPool
from gpu_pool.plan import BlockId


class PrefixIndex:
    """The index of one pool; its entries never outnumber the pool's blocks."""

    def __init__(self, pool: BlockPool) -> None:
        """Empty."""
        self._pool = pool
        self._entries: dict[bytes, tuple[BlockId, int]] = {}
        self._key_of: dict[BlockId, bytes] = {}

    def __len__(self) -> int:
        """Number of entries, those of reused blocks included."""
        return len(self._entries)

    def find(self, key: bytes) -> BlockId | None:
        """The block that holds what `key` names."""
        entry = self._entries.get(key)
        if entry is None or not self._pool.is_current(*entry):
            return None
        return entry[0]

    def count_leading(self, keys: Sequence[bytes]) -> int:
        """How many of the first `keys` are found, up to one that is not."""
        for place, key in enumerate(keys):
            entry = self._entries.get(key)
            if entry is None or not self._pool.is_current(*entry):
                return place
        return len(keys)

    def enter(self, key: bytes, block_id: BlockId, owner: AccountId | None) -> None:
        """Points `key` at the block, which is in use, and drops the block's former entry.

        Without an `owner` the content is worth nothing once nobody uses it.

        Where somebody uses another block with that content, that one stays known. One that nobody
        uses is about as old as what goes next: the newly computed copy is the one to keep.
        """
        known = self.find(key)
        if known is not None and not self._pool.is_free(known):
            return
        former = self._key_of.get(block_id)
        if former is not None and self._entries.get(former, (None,))[0] == block_id:
            del self._entries[former]
        self._entries[key] = (block_id, self._pool.mark_cached(block_id, owner))
        self._key_of[block_id] = key

    def withdraw(self, key: bytes) -> None:
        """Lets nobody find a block under `key` any more; who uses one keeps it."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            del self._key_of[entry[0]]
