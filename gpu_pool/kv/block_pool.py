"""Who uses which block: reference counts, reuse, tags.

Owns the blocks of one KV group; must not know what is in them (`prefix_index` does). A block whose
last user leaves stays as it is until it is handed out again, so its content can still be shared.
Read next: `eviction` (what is handed out first), `group_memory`.
"""

from collections import Counter
from collections.abc import Iterable

from contracts.errors import InvariantBroken, OutOfBlocks
from contracts.ids import AccountId
from gpu_pool.kv.block import Block
from gpu_pool.kv.eviction import FlooredLru
from gpu_pool.kv.slab_map import SlabMap
from gpu_pool.plan import BlockId, KvSlabs


class BlockPool:
    """All blocks of a group. Every call costs the same however many there are; to close a slab
    costs a look at each that floors keep.
    """

    def __init__(self, num_blocks: int, slabs: KvSlabs | None = None) -> None:
        """`num_blocks` free blocks without content; with `slabs` only the own ones are there."""
        self._blocks = [Block(BlockId(index)) for index in range(num_blocks)]
        self.slabs = None if slabs is None else SlabMap(num_blocks, slabs)
        self.num_blocks = num_blocks if slabs is None else slabs.num_own * slabs.blocks_each
        """Those that are there, free or not."""
        self.num_own = self.num_blocks
        """Those that are always there."""
        self._free = FlooredLru(self.num_blocks)
        for block in reversed(self._blocks[: self.num_blocks]):  # the last added is the first out
            self._free.add(block)
        self._wiped: list[BlockId] = []
        self.num_shifts = 0
        """Grows whenever a block gets a second user, or has one left."""

    @property
    def num_free(self) -> int:
        """Blocks that nobody uses, those with content to be found included."""
        return len(self._free)

    @property
    def has_wiped(self) -> bool:
        """True while blocks wait to be zeroed."""
        return bool(self._wiped)

    @property
    def num_blank(self) -> int:
        """Free blocks without content to be found."""
        return self._free.num_blank

    def open_slab(self) -> int:
        """Lets another slab come; returns its blocks, 0 when all slabs are there."""
        slab = None if self.slabs is None else self.slabs.open_next()
        if self.slabs is None or slab is None:
            return 0
        ids = self.slabs.list_blocks(slab)
        self.num_blocks += len(ids)
        for block_id in reversed(ids):
            self._free.add(self._blocks[block_id])
        return len(ids)

    def close_slab(self, num_kept: int) -> range | None:
        """Lets the slab go that was left longest ago; None when none can.

        It takes one that nobody uses, on no account's floor, and leaves `num_kept` free blocks.
        """
        if self.slabs is None or not self.slabs.num_extra:
            return None
        if len(self._free) - self.slabs.blocks_each < num_kept:
            return None
        for slab in self.slabs.list_unused():
            ids = self.slabs.list_blocks(slab)
            blocks = [self._blocks[block_id] for block_id in ids]
            if not any(block.is_protected for block in blocks):
                self._retire(blocks)
                self.slabs.close(slab)
                self.num_blocks -= len(ids)
                return ids
        return None

    def activate(self, account_id: AccountId) -> None:
        """Gives an account a floor of blocks that others cannot take from it."""
        self._free.activate(account_id)

    def deactivate(self, account_id: AccountId) -> None:
        """Takes the floor away."""
        self._free.deactivate(account_id)

    def count_available(self, account_id: AccountId, *, takes_floors: bool = False) -> int:
        """Blocks that can be handed out to `account_id`."""
        return self._free.count(account_id, takes_floors=takes_floors)

    def allocate(
        self, count: int, account_id: AccountId, *, takes_floors: bool = False
    ) -> tuple[BlockId, ...]:
        """`count` blocks with one user, new tags and no content of value.

        Raises: `OutOfBlocks` when fewer are available; nothing has changed then.
        """
        available = self.count_available(account_id, takes_floors=takes_floors)
        if count > available:
            raise OutOfBlocks(f"{count} blocks of KV memory are needed, {available} are available.")
        return tuple(self._renew(self._free.pop(account_id)) for _ in range(count))

    def share(self, block_id: BlockId) -> None:
        """Adds a user to a block, content untouched; a free one stops being free."""
        block = self._blocks[block_id]
        if block.num_users == 0:
            self._free.remove(block)
            if self.slabs is not None:
                self.slabs.note_taken(block_id)
        block.num_users += 1
        self.num_shifts += block.num_users == 2

    def release(
        self, block_ids: Iterable[BlockId], *, wipes: bool = False, is_spared: bool = True
    ) -> None:
        """Takes one user from each block; with `wipes`, blocks without one are to be zeroed.

        Blocks that are not spared are free for everybody, whatever floor their owner has.
        Pass a sequence's blocks last first: the far end of a prefix is then reused before its
        start, without which it could not be found anyway.
        Raises: `InvariantBroken` when a block has no user.
        """
        for block_id in block_ids:
            block = self._blocks[block_id]
            if block.num_users == 0:
                raise InvariantBroken(f"Block {block_id} was released more often than it was used.")
            block.num_users -= 1
            self.num_shifts += block.num_users == 1
            if block.num_users == 0:
                if self.slabs is not None:
                    self.slabs.note_left(block_id)
                if wipes:
                    block.tag += 1
                    block.owner = None
                    self._wiped.append(block_id)
                self._free.add(block, is_spared=is_spared)

    def take_wiped(self) -> tuple[BlockId, ...]:
        """The blocks to be zeroed, which are forgotten with this."""
        wiped, self._wiped = tuple(self._wiped), []
        return wiped

    def forget(self) -> None:
        """Makes all free blocks blank: nothing is found in them again."""
        for block in tuple(self._free):
            self._free.remove(block)
            block.tag += 1
            block.owner = None
            self._free.add(block)

    def mark_cached(self, block_id: BlockId, owner: AccountId | None) -> int:
        """Says that the content can be found from now on; returns the tag it is valid under.

        Without an owner the block is the first to be reused.
        """
        block = self._blocks[block_id]
        assert block.num_users > 0, "content that nobody has computed"
        block.owner = owner
        return block.tag

    def read_tag(self, block_id: BlockId) -> int:
        """The tag under which the block is held now."""
        return self._blocks[block_id].tag

    def is_current(self, block_id: BlockId, tag: int) -> bool:
        """True while the block still holds what it held under `tag`."""
        return self._blocks[block_id].tag == tag

    def is_free(self, block_id: BlockId) -> bool:
        """True when nobody uses the block."""
        return self._blocks[block_id].num_users == 0

    def is_shared(self, block_id: BlockId) -> bool:
        """True when more than one table lists the block."""
        return self._blocks[block_id].num_users > 1

    def check(self, held: Iterable[BlockId]) -> None:
        """Asserts that the books are right; `held` are the blocks of all tables, with repeats."""
        users = Counter(held)
        for block in self._blocks:
            assert block.num_users == users[block.block_id], f"{block} has {users[block.block_id]}"
        free = [block.block_id for block in self._free]
        unused = [block.block_id for block in self._blocks if block.num_users == 0]
        if self.slabs is None:
            assert sorted(free) == unused, f"free list {free}, unused {unused}"
        else:
            self.slabs.check([block.num_users for block in self._blocks], set(free))
            num_used = len(self._blocks) - len(unused)
            assert len(free) + num_used == self.num_blocks, "blocks are missing"
        assert len(self._free) == len(free), "the free list miscounts"

    def _retire(self, blocks: Iterable[Block]) -> None:
        """Nobody finds what is in these free blocks, or is given them."""
        for block in blocks:
            self._free.remove(block)
            block.tag += 1
            block.owner = None

    def _renew(self, block: Block) -> BlockId:
        """Makes a free block somebody's new one."""
        if self.slabs is not None:
            self.slabs.note_taken(block.block_id)
        block.num_users = 1
        block.tag += 1
        block.owner = None
        return block.block_id
