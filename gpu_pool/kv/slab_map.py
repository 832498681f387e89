"""Which slabs of a pool are there, and how many of their blocks somebody uses.

Owns the arithmetic of slabs; must not know which blocks are free. Every call costs the same however
many there are. Read next: `block_pool`.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence

from gpu_pool.plan import BlockId, KvSlabs


class SlabMap:
    """The slabs of one pool; its own are open from the start."""

    def __init__(self, num_blocks: int, slabs: KvSlabs) -> None:
        """Nobody uses a block."""
        self.blocks_each = slabs.blocks_each
        self.num_own = slabs.num_own
        num_slabs = num_blocks // slabs.blocks_each
        assert num_slabs * slabs.blocks_each == num_blocks, "a slab is cut"
        assert 0 < slabs.num_own <= num_slabs, "a pool without slabs of its own"
        self._closed = list(reversed(range(slabs.num_own, num_slabs)))
        """The next one to come is the last."""
        self._num_used = [0] * num_slabs
        self._unused = OrderedDict.fromkeys(range(slabs.num_own))
        """Open slabs of which nobody uses a block, the one left longest ago first."""

    @property
    def num_extra(self) -> int:
        """Open slabs beyond the own ones."""
        return len(self._num_used) - len(self._closed) - self.num_own

    @property
    def num_closed(self) -> int:
        """Slabs that are not there."""
        return len(self._closed)

    def list_blocks(self, slab: int) -> range:
        """The ids of a slab's blocks."""
        return range(slab * self.blocks_each, (slab + 1) * self.blocks_each)

    def note_taken(self, block_id: BlockId) -> None:
        """A block that was free has a user."""
        slab = block_id // self.blocks_each
        if not self._num_used[slab]:
            del self._unused[slab]
        self._num_used[slab] += 1

    def note_left(self, block_id: BlockId) -> None:
        """A block has no user any more."""
        slab = block_id // self.blocks_each
        self._num_used[slab] -= 1
        if not self._num_used[slab]:
            self._unused[slab] = None

    def list_unused(self) -> Iterable[int]:
        """Open slabs of which nobody uses a block, the one left longest ago first."""
        return self._unused

    def open_next(self) -> int | None:
        """A slab that was closed, and is open now; None when all are."""
        if not self._closed:
            return None
        slab = self._closed.pop()
        self._unused[slab] = None
        self._unused.move_to_end(slab, last=False)  # nothing is in it that could be missed
        return slab

    def close(self, slab: int) -> None:
        """An unused slab is not there any more."""
        assert self.num_extra > 0, "a pool keeps its own slabs"
        assert slab in self._unused, "the slab is closed, or somebody uses it"
        del self._unused[slab]
        self._closed.append(slab)

    def check(self, nums_users: Sequence[int], free: Collection[BlockId]) -> None:
        """Asserts that the counts are right; users of all blocks, and which blocks are free."""
        assert self.num_extra >= 0, "slabs of its own are closed"
        closed = set(self._closed)
        for slab, num_used in enumerate(self._num_used):
            ids = self.list_blocks(slab)
            assert num_used == sum(nums_users[index] > 0 for index in ids)
            assert (slab in self._unused) == (not num_used and slab not in closed)
            if slab in closed:
                assert not num_used, "a closed slab has users"
                assert not any(BlockId(index) in free for index in ids), "it has free blocks"
