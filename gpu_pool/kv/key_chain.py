"""The keys of a sequence's full blocks, each of which stands for all tokens up to its block's end.

Extends what a table has of them; must not know who finds a block by its key. Read next:
`block_hash` (what a key covers), `block`.
"""

from collections.abc import Sequence

from gpu_pool.kv.block import BlockTable
from gpu_pool.kv.block_hash import BlockHasher


class KeyChain:
    """Extends tables' chains."""

    def __init__(self, block_size: int, hasher: BlockHasher) -> None:
        """Blocks have `block_size` tokens."""
        self._block_size = block_size
        self._hasher = hasher

    def create_root(self, cache_salt: bytes, adapter_digest: bytes) -> bytes:
        """What a chain begins with; empty without a salt: such blocks have no names."""
        return self._hasher.create_root(cache_salt, adapter_digest) if cache_salt else b""

    def extend_to(self, table: BlockTable, token_ids: Sequence[int], num_blocks: int) -> None:
        """Brings the table's chain to at least `num_blocks` keys at once."""
        num_known, size = len(table.keys), self._block_size
        if num_known < num_blocks:
            parent = table.keys[-1] if table.keys else table.root_key
            tokens = token_ids[num_known * size : num_blocks * size]
            table.keys += self._hasher.extend_all(parent, tokens)

    def find_key(self, table: BlockTable, token_ids: Sequence[int], index: int) -> bytes:
        """The key of block `index`; extends the table's chain by at most one."""
        if index == len(table.keys):
            size = self._block_size
            parent = table.keys[-1] if table.keys else table.root_key
            tokens = token_ids[index * size : (index + 1) * size]
            table.keys.append(self._hasher.extend(parent, tokens))
        return table.keys[index]
