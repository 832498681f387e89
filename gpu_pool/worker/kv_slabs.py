"""Into which slabs a group's KV memory is cut where models share some of it.

Must not know who has which. Read next: `kv_groups` (the caller), `gpu_pool.kv.slab_map`.
"""

import mmap
from math import gcd
from typing import Final

from gpu_pool.plan import KvSlabs

_LEAST_BYTES: Final = 512 << 10
"""Of a slab. A single block in use, or on a floor, keeps a whole one from going: where blocks are
as large as those of models that are worth sharing for, each is a slab of its own."""


def cut_slabs(block_bytes: int, num_blocks: int, num_own: int) -> tuple[KvSlabs, int]:
    """Slabs, of which `num_own` blocks or a little more never go, and how many blocks all of them
    have together: no more than `num_blocks` unless the own ones do.

    They are whole pages where that takes few blocks; else what the ends of a slab share with
    others stays, a page or two of each.
    """
    blocks_each = -(-_LEAST_BYTES // block_bytes)
    unit = mmap.PAGESIZE // gcd(block_bytes, mmap.PAGESIZE)
    if unit <= 2 * blocks_each:
        blocks_each = -(-blocks_each // unit) * unit
    own = -(-num_own // blocks_each)
    return KvSlabs(blocks_each, own), max(own, num_blocks // blocks_each) * blocks_each
