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
from gpu_pool.plan import BlockId


class BlockPool:
    """All blocks of a group. Every call costs the same however many there are."""

    def __init__(self, num_blocks: int) -> None:
        """`num_blocks` free blocks without content."""
        self._blocks = [Block(BlockId(index)) for index in range(num_blocks)]
        self._free = FlooredLru(num_blocks)
        for block in reversed(self._blocks):  # the last one added is the first one out
            self._free.add(block)
        self._wiped: list[BlockId] = []

    @property
    def num_blocks(self) -> int:
        """All blocks, free or not."""
        return len(self._blocks)

    @property
    def num_free(self) -> int:
        """Blocks that nobody uses, those with content to be found included."""
        return len(self._free)

    @property
    def has_wiped(self) -> bool:
        """True while blocks wait to be zeroed."""
        return bool(self._wiped)

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
        block.num_users += 1

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
            if block.num_users == 0:
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

    def mark_cached(self, block_id: BlockId, owner: AccountId) -> int:
        """Says that the content can be found from now on; returns the tag it is valid under."""
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
        assert sorted(free) == unused, f"free list {free}, unused {unused}"
        assert len(self._free) == len(free), "the free list miscounts"

    @staticmethod
    def _renew(block: Block) -> BlockId:
        """Makes a free block somebody's new one."""
        block.num_users = 1
        block.tag += 1
        block.owner = None
        return block.block_id
