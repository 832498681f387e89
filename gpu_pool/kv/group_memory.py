"""The blocks of one KV group, given to sequences and taken back as its layers need them.

Owns pool, index and promises of one group; must not know sequences or other groups. A promise keeps
blocks for a sequence that has started: others may not start with them.
Read next: `kv_memory` (joins the groups), `reach`.
"""

from collections.abc import Sequence

from contracts.ids import AccountId
from gpu_pool.kv.block import AloneCount, BlockTable, GroupTable
from gpu_pool.kv.block_pool import BlockPool
from gpu_pool.kv.host_pool import HostPool
from gpu_pool.kv.prefix_index import PrefixIndex
from gpu_pool.kv.reach import Reach
from gpu_pool.plan import BlockId, HostBlockId, KvGroup


class GroupMemory:
    """All blocks of one group."""

    def __init__(
        self, group: KvGroup, block_size: int, num_blocks: int, max_step_tokens: int, place: int = 0
    ) -> None:
        """`max_step_tokens`: the most that the scheduler would compute of one sequence at once.

        `place` is the group's index among all.
        """
        self.pool = BlockPool(num_blocks, group.slabs)
        self.host = HostPool(place, group.num_host_blocks)
        self.index = PrefixIndex(self.pool)
        self.reach = Reach(group, block_size)
        self.max_step_tokens = min(max_step_tokens, self.reach.fit_step(self.pool.num_own))
        """The same, as far as the blocks allow that are always there."""
        self.block_bytes = group.block_bytes
        self._block_size = block_size
        self._num_promised = 0

    def count_room(self, account_id: AccountId, *, takes_floors: bool) -> int:
        """Blocks that `account_id` may have and nobody has been promised."""
        available = self.pool.count_available(account_id, takes_floors=takes_floors)
        return available - self._num_promised

    @property
    def num_promised(self) -> int:
        """Blocks that are free and nobody may start with."""
        return self._num_promised

    def count_blocks(self, num_tokens: int) -> int:
        """The most blocks that a sequence of `num_tokens` ever holds at once."""
        return self.reach.count_blocks(num_tokens, self.max_step_tokens)

    def list_cached(self, keys: Sequence[bytes], num_cached: int) -> list[BlockId]:
        """The blocks to share by a sequence whose first `num_cached` blocks need no computing."""
        first = self.reach.find_first_block(num_cached * self._block_size)
        found = [self.index.find(key) for key in keys[first:num_cached]]
        return [block_id for block_id in found if block_id is not None]

    def price(self, cached: Sequence[BlockId], num_cached: int, num_tokens: int) -> int:
        """Blocks to be taken for a start: `cached` ones that are free, and those that are new."""
        num_revived = sum(self.pool.is_free(block_id) for block_id in cached)
        return num_revived + self._count_new(len(cached), num_cached, num_tokens)

    def hold(
        self,
        table: BlockTable,
        place: int,
        cached: Sequence[BlockId],
        num_cached: int,
        num_tokens: int,
        *,
        takes_floors: bool,
    ) -> None:
        """Gives a start its blocks: all new ones at once, or in a local group a promise of them."""
        group = table.groups[place]
        for block_id in cached:
            self.pool.share(block_id)
        group.num_dropped = num_cached - len(cached)
        group.block_ids = list(cached)
        group.alone = None
        num_new = self._count_new(len(cached), num_cached, num_tokens)
        if self.reach.is_local:
            group.num_promised = num_new
            self._num_promised += num_new
        else:
            group.block_ids += self.pool.allocate(
                num_new, table.account_id, takes_floors=takes_floors
            )

    def list_shared(self, keys: Sequence[bytes], num_shared: int) -> list[BlockId]:
        """The blocks to share by a return whose first `num_shared` blocks are in the cache; a local
        group has all that it needs on the host.
        """
        found = [self.index.find(key) for key in keys[:num_shared] if not self.reach.is_local]
        return [block_id for block_id in found if block_id is not None]

    def share(self, table: BlockTable, place: int, cached: Sequence[BlockId]) -> None:
        """Gives an empty table cached blocks, its first ones."""
        for block_id in cached:
            self.pool.share(block_id)
        group = table.groups[place]
        group.block_ids = list(cached)
        group.alone = None

    def restore(
        self,
        table: BlockTable,
        place: int,
        swapped: tuple[int, tuple[HostBlockId, ...]],
        num_tokens: int,
        *,
        takes_floors: bool,
    ) -> None:
        """Gives a return its blocks, behind shared ones: those moved in from the host, then as
        `hold` does.
        """
        group = table.groups[place]
        first, host_ids = swapped
        group.num_dropped = first - len(group.block_ids)
        moved = self.pool.allocate(len(host_ids), table.account_id, takes_floors=takes_floors)
        group.block_ids += moved
        self.host.move_in(host_ids, moved)
        num_new = self._count_new(len(group.block_ids), group.end, num_tokens)
        if self.reach.is_local:
            group.num_promised = num_new
            self._num_promised += num_new
        else:
            group.block_ids += self.pool.allocate(
                num_new, table.account_id, takes_floors=takes_floors
            )

    def price_return(
        self,
        swapped: tuple[int, tuple[HostBlockId, ...]],
        shared: Sequence[BlockId],
        num_tokens: int,
    ) -> int:
        """Blocks to be taken for a return that shares `shared`."""
        first, host_ids = swapped
        num_revived = sum(self.pool.is_free(block_id) for block_id in shared)
        num_held = len(host_ids) + len(shared)
        num_new = self._count_new(num_held, first + len(host_ids), num_tokens)
        return num_revived + len(host_ids) + num_new

    def drop(self, table: BlockTable, place: int, position: int) -> None:
        """Takes back the blocks that the token at `position` and later ones do not read."""
        group = table.groups[place]
        num_leading = min(self.reach.find_first_block(position), group.end) - group.num_dropped
        if num_leading > 0:
            leading = group.block_ids[:num_leading]
            self.pool.release(leading, wipes=table.is_private)
            del group.block_ids[:num_leading]
            group.num_dropped += num_leading
            group.num_promised += num_leading
            self._num_promised += num_leading

    def count_alone(self, group: GroupTable) -> int:
        """Blocks that no other table uses. Counted anew only where somebody began or ceased to
        share some: it is asked of all who run in every step in which somebody waits.
        """
        known, num_shifts = group.alone, self.pool.num_shifts
        if known and (known.num_shifts, known.num_dropped) == (num_shifts, group.num_dropped):
            return known.num_blocks + group.end - known.end
        count = self._recount_alone(group)
        group.alone = AloneCount(count, num_shifts, group.num_dropped, group.end)
        return count

    def count_missing(self, group: GroupTable, end: int) -> int:
        """Blocks that `group` lacks for the tokens below `end`."""
        return max(0, -(-end // self._block_size) - group.end)

    def can_extend(self, table: BlockTable, place: int, count: int, *, takes_floors: bool) -> bool:
        """True when `table` may have `count` more blocks, promised ones first."""
        promised = table.groups[place].num_promised
        available = self.pool.count_available(table.account_id, takes_floors=takes_floors)
        num_unpromised = max(0, count - promised)
        return count <= available and num_unpromised <= max(0, available - self._num_promised)

    def extend(self, table: BlockTable, place: int, count: int, *, takes_floors: bool) -> None:
        """Gives `count` more blocks. Only after `can_extend`."""
        group = table.groups[place]
        num_kept = min(count, group.num_promised)
        group.num_promised -= num_kept
        self._num_promised -= num_kept
        group.block_ids += self.pool.allocate(count, table.account_id, takes_floors=takes_floors)

    def release(self, table: BlockTable, place: int, *, is_spared: bool) -> None:
        """Takes back everything."""
        group = table.groups[place]
        self.pool.release(reversed(group.block_ids), wipes=table.is_private, is_spared=is_spared)
        self._num_promised -= group.num_promised
        group.block_ids = []
        group.alone = None
        group.num_dropped = group.num_dropped_told = group.num_told = group.num_promised = 0

    def check(self, groups: Sequence[GroupTable]) -> None:
        """Asserts that pool and promises are right; `groups` are all tables there are."""
        self.pool.check(block_id for group in groups for block_id in group.block_ids)
        assert self._num_promised == sum(group.num_promised for group in groups)
        assert all(group.num_promised >= 0 for group in groups)
        assert all(self.count_alone(group) == self._recount_alone(group) for group in groups)

    def _recount_alone(self, group: GroupTable) -> int:
        """The same by a look at each block."""
        return sum(not self.pool.is_shared(block_id) for block_id in group.block_ids)

    def _count_new(self, num_held: int, num_cached: int, num_tokens: int) -> int:
        """Blocks beside the `num_held` cached ones: for all tokens, or to fill the ring."""
        num_all = -(-num_tokens // self._block_size) - num_cached
        if not self.reach.is_local:
            return num_all
        return max(0, min(num_all, self.count_blocks(num_tokens) - num_held))
