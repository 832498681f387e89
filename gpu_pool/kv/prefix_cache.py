"""Finds blocks that already hold a prompt's first tokens.

Owns the index from key to block; must not know sequences. The pool never tells it of a reuse:
an entry is valid while the block's tag is the one it was registered under, and is checked at every
look-up. Only full blocks are shared, so a shared block is never written.
Read next: `block_hash` (what a key covers), `gpu_pool.engine.scheduler` (the caller).
"""

from collections.abc import Sequence
from typing import Protocol

from gpu_pool.kv.block import BlockTable
from gpu_pool.kv.block_hash import BlockHasher
from gpu_pool.kv.block_pool import BlockPool
from gpu_pool.plan import BlockId


class PrefixIndex(Protocol):
    """What the scheduler asks of a prefix cache, or of its absence."""

    def create_table(self, cache_salt: bytes) -> BlockTable:
        """An empty table in the namespace of `cache_salt`."""
        ...

    def find(self, table: BlockTable, token_ids: Sequence[int]) -> list[BlockId]:
        """Blocks that hold the longest known prefix of `token_ids`, not yet shared."""
        ...

    def register(self, table: BlockTable, token_ids: Sequence[int], num_computed: int) -> None:
        """Makes the table's full blocks among the first `num_computed` tokens known."""
        ...


class PrefixCache:
    """The cache of one model; its entries never outnumber the pool's blocks."""

    def __init__(self, pool: BlockPool, hasher: BlockHasher) -> None:
        """An empty index over the blocks of `pool`."""
        self._pool = pool
        self._hasher = hasher
        self._entries: dict[bytes, tuple[BlockId, int]] = {}
        self._key_of: dict[BlockId, bytes] = {}

    def __len__(self) -> int:
        """Number of entries, those of reused blocks included."""
        return len(self._entries)

    def create_table(self, cache_salt: bytes) -> BlockTable:
        """An empty table; tables of different salts never find each other's blocks."""
        return BlockTable(root_key=self._hasher.create_root(cache_salt))

    def find(self, table: BlockTable, token_ids: Sequence[int]) -> list[BlockId]:
        """Blocks that hold the longest known prefix, one token of `token_ids` always left over.

        At least one token must be computed for there to be logits. Hashes only as far as it finds.
        """
        found: list[BlockId] = []
        for index in range((len(token_ids) - 1) // self._hasher.block_size):
            entry = self._entries.get(self._key(table, token_ids, index))
            if entry is None or not self._pool.is_current(*entry):
                break
            found.append(entry[0])
        return found

    def register(self, table: BlockTable, token_ids: Sequence[int], num_computed: int) -> None:
        """Makes full blocks known; of two with equal content the first stays the known one."""
        num_full = num_computed // self._hasher.block_size
        for index in range(table.num_registered, num_full):
            self._enter(self._key(table, token_ids, index), table.block_ids[index])
        table.num_registered = max(table.num_registered, num_full)

    def _key(self, table: BlockTable, token_ids: Sequence[int], index: int) -> bytes:
        """The key of block `index`; extends the table's chain by at most one."""
        if index == len(table.keys):
            size = self._hasher.block_size
            parent = table.keys[-1] if table.keys else table.root_key
            tokens = token_ids[index * size : (index + 1) * size]
            table.keys.append(self._hasher.extend(parent, tokens))
        return table.keys[index]

    def _enter(self, key: bytes, block_id: BlockId) -> None:
        """Points `key` at the block unless a valid entry exists; drops the block's former entry."""
        entry = self._entries.get(key)
        if entry is not None and self._pool.is_current(*entry):
            return
        former = self._key_of.get(block_id)
        if former is not None and self._entries.get(former, (None,))[0] == block_id:
            del self._entries[former]
        self._entries[key] = (block_id, self._pool.mark_cached(block_id))
        self._key_of[block_id] = key


class NoPrefixCache:
    """Finds and remembers nothing: the setting `prefix_caching = false`."""

    def create_table(self, cache_salt: bytes) -> BlockTable:
        """An empty table."""
        return BlockTable(root_key=b"")

    def find(self, table: BlockTable, token_ids: Sequence[int]) -> list[BlockId]:
        """Nothing."""
        return []

    def register(self, table: BlockTable, token_ids: Sequence[int], num_computed: int) -> None:
        """Does nothing."""
