"""In which order free blocks are given new content, and whose are spared.

Owns the order alone; must not know keys or sequences. First go blocks without content to be found,
then those beyond every account's floor, least recently used first. The newest free blocks of each
active account, as many as its floor, are spared as long as anything else can be had, so that no
account can flush another's prefixes. All floors together are at most half of the blocks that are
always there.
Every call is constant in time, those that move blocks over a floor on average; only an account that
becomes active costs a look at each of those that are.
Read next: `block_pool`, its only caller.
"""

from collections import OrderedDict
from collections.abc import Iterator

from contracts.ids import AccountId
from gpu_pool.kv.block import Block
from gpu_pool.plan import BlockId


class Ring:
    """Blocks in order of their last use: links through the blocks themselves."""

    def __init__(self) -> None:
        """Empty."""
        self._head = Block(BlockId(-1))  # newer than the newest and older than the oldest
        self._num_blocks = 0

    def __len__(self) -> int:
        """Number of blocks."""
        return self._num_blocks

    def __iter__(self) -> Iterator[Block]:
        """The blocks, oldest first."""
        block = self._head.newer
        while block is not self._head:
            yield block
            block = block.newer

    @property
    def oldest(self) -> Block:
        """The block used longest ago. Only called while there is one."""
        block = self._head.newer
        assert block is not self._head, "no block is free"
        return block

    def add(self, block: Block, *, is_newest: bool = True) -> None:
        """Takes in `block` at the newest or the oldest end."""
        older = self._head.older if is_newest else self._head
        block.older, block.newer = older, older.newer
        older.newer.older = block
        older.newer = block
        self._num_blocks += 1

    def remove(self, block: Block) -> None:
        """Lets go of `block`, wherever it stands."""
        block.older.newer, block.newer.older = block.newer, block.older
        block.older = block.newer = block
        self._num_blocks -= 1


class FlooredLru:
    """Holds the free blocks of one pool and chooses among them."""

    def __init__(self, num_blocks: int) -> None:
        """Nothing is free. Of `num_blocks`, which are always there, floors are parts."""
        self._max_protected = num_blocks // 2
        self._blank = Ring()
        self._exposed = Ring()
        self._protected: OrderedDict[AccountId, Ring] = OrderedDict()
        """Of active accounts; the one active last stands last."""
        self._num_protected = 0

    def __len__(self) -> int:
        """Number of free blocks."""
        return len(self._blank) + len(self._exposed) + self._num_protected

    def __iter__(self) -> Iterator[Block]:
        """The free blocks, in the order in which they would be reused if nobody were active."""
        yield from self._blank
        yield from self._exposed
        for ring in self._protected.values():
            yield from ring

    @property
    def floor(self) -> int:
        """Blocks that each active account keeps."""
        return self._max_protected // max(1, len(self._protected))

    @property
    def num_blank(self) -> int:
        """Free blocks without content to be found."""
        return len(self._blank)

    def activate(self, account_id: AccountId) -> None:
        """Gives an account a floor, for which those of all others become lower."""
        if account_id not in self._protected:
            self._protected[account_id] = Ring()
            for ring in self._protected.values():
                self._lower(ring)

    def deactivate(self, account_id: AccountId) -> None:
        """Takes the floor away; the blocks may be reused in their turn."""
        ring = self._protected.pop(account_id)
        while ring:
            self._expose(ring)

    def add(self, block: Block, *, is_spared: bool = True) -> None:
        """Takes in a block that nobody uses any more; one not spared is on no floor."""
        spared = block.owner if is_spared else None
        ring = None if spared is None else self._protected.get(spared)
        if block.owner is None:
            self._blank.add(block, is_newest=False)
        elif ring is None:
            self._exposed.add(block)
        else:
            block.is_protected = True
            ring.add(block)
            self._num_protected += 1
            self._lower(ring)

    def remove(self, block: Block) -> None:
        """Lets go of a block that is used again with its content."""
        if not block.is_protected:
            (self._blank if block.owner is None else self._exposed).remove(block)
            return
        assert block.owner is not None, "a protected block without an owner"
        self._protected[block.owner].remove(block)
        block.is_protected = False
        self._num_protected -= 1

    def count(self, account_id: AccountId, *, takes_floors: bool) -> int:
        """Blocks that `account_id` may have: all but others' floors, unless those are taken too."""
        if takes_floors:
            return len(self)
        own = self._protected.get(account_id)
        return len(self._blank) + len(self._exposed) + (0 if own is None else len(own))

    def pop(self, account_id: AccountId) -> Block:
        """The block to reuse next for `account_id`, removed. Only called while there is one.

        Others' floors come last, those of the account that has been active longest first.
        """
        if self._blank:
            block = self._blank.oldest
        elif self._exposed:
            block = self._exposed.oldest
        else:
            own = self._protected.get(account_id)
            rings = (ring for ring in self._protected.values() if ring)
            block = (own or next(rings)).oldest
        self.remove(block)
        return block

    def _lower(self, ring: Ring) -> None:
        """Leaves an account no more than its floor."""
        floor = self.floor
        while len(ring) > floor:
            self._expose(ring)

    def _expose(self, ring: Ring) -> None:
        """Moves the oldest block of a floor among those that may be reused."""
        block = ring.oldest
        ring.remove(block)
        block.is_protected = False
        self._num_protected -= 1
        self._exposed.add(block)
