"""The KV memory of one model as the scheduler sees it: all groups, one prefix.

Owns what is found, begun, extended and released in all groups at once; must not know sequences. A
prefix is found only as far as every group still has what later tokens read of it.
Read next: `group_memory` (one group's blocks), `prefix_search`, `key_chain`.
"""

from collections.abc import Callable, Sequence

from contracts.ids import AccountId, RegionId
from gpu_pool.kv.announced_keys import AnnouncedKeys
from gpu_pool.kv.block import BlockTable, FoundPrefix, GroupTable, NewBlocks, SwappedBlocks
from gpu_pool.kv.block_hash import BlockHasher
from gpu_pool.kv.floors import AccountFloors
from gpu_pool.kv.group_memory import GroupMemory
from gpu_pool.kv.host_pool import HostMoves
from gpu_pool.kv.host_run import Prefix
from gpu_pool.kv.key_chain import KeyChain
from gpu_pool.kv.prefix_search import PrefixSearch
from gpu_pool.kv.shared_room import SharedRoom
from gpu_pool.plan import BlockId


class KvMemory:
    """All blocks of one model."""

    def __init__(
        self,
        groups: Sequence[GroupMemory],
        block_size: int,
        hasher: BlockHasher,
        *,
        keeps_prefixes: bool = True,
    ) -> None:
        """Without `keeps_prefixes` what nobody uses any more is worth nothing, and others are told
        no names.
        """
        self._keeps_prefixes = keeps_prefixes
        self._groups = tuple(groups)
        self.shared = SharedRoom(groups)
        """What is here of the memory that a node's models share."""
        self.floors = AccountFloors([group.pool for group in groups])
        """Whose blocks others' floods leave."""
        self._block_size = block_size
        self._chain = KeyChain(block_size, hasher)
        self.nothing_new = NewBlocks(((),) * len(groups), ((),) * len(groups), ())
        """What `take_new` has where the executor knows all."""
        self._has_local = any(group.reach.is_local for group in groups)
        self._search = PrefixSearch(groups, block_size, self._chain)
        self._announced = AnnouncedKeys()

    @property
    def groups(self) -> tuple[GroupMemory, ...]:
        """The parts, for what moves KV past sequences."""
        return self._groups

    @property
    def num_blocks(self) -> int:
        """Blocks of the first group, which stands for the load, as far as they are there."""
        return self._groups[0].pool.num_blocks

    @property
    def num_free(self) -> int:
        """Blocks of the first group that nobody uses."""
        return self._groups[0].pool.num_free

    @property
    def max_step_tokens(self) -> int:
        """The most tokens of one sequence that fit in a step."""
        return min(group.max_step_tokens for group in self._groups)

    @property
    def has_wiped(self) -> bool:
        """True while blocks wait to be zeroed."""
        return any(group.pool.has_wiped for group in self._groups)

    def create_table(
        self,
        account_id: AccountId,
        cache_salt: bytes,
        adapter_digest: bytes = b"",
        *,
        is_private: bool = False,
        priority: int = 0,
        regions: tuple[RegionId, ...] | None = None,
    ) -> BlockTable:
        """An empty table; tables of different salts or adapters never find each other's blocks, and
        those without a salt find none. `regions` are where its blocks may be, if not anywhere.
        """
        root_key = self._chain.create_root(cache_salt, adapter_digest)
        groups = tuple(GroupTable() for _ in self._groups)
        return BlockTable(root_key, account_id, groups, is_private, priority, regions)

    def fits(self, num_tokens: int) -> bool:
        """True when a sequence of `num_tokens` can be computed if nobody else is there."""
        return all(group.count_blocks(num_tokens) <= group.pool.num_own for group in self._groups)

    def find(self, table: BlockTable, token_ids: Sequence[int]) -> FoundPrefix:
        """The longest known prefix of `token_ids`, one token always left over.

        At least one token must be computed for there to be logits. What the table left in host
        memory counts where it is longer.
        """
        found = self._find_cached(table, token_ids)
        swapped = table.swapped
        if swapped is None or found.num_tokens >= swapped.num_tokens:
            return found
        num_shared = swapped.num_shared
        if num_shared and self._search.count_whole(table, token_ids, num_shared) < num_shared:
            return found
        return FoundPrefix(num_shared, swapped.num_tokens, is_awaited=False, is_swapped=True)

    def name_prefix(self, table: BlockTable, token_ids: Sequence[int]) -> Prefix:
        """The names of the full blocks that `token_ids` fill, one token always left over."""
        num_blocks = 0
        if table.root_key and self._keeps_prefixes and token_ids and not table.is_private:
            num_blocks = (len(token_ids) - 1) // self._block_size
        self._chain.extend_to(table, token_ids, num_blocks)
        keys = tuple(table.keys[:num_blocks])
        return Prefix(table.account_id, table.root_key, keys, table.regions)

    def _find_cached(self, table: BlockTable, token_ids: Sequence[int]) -> FoundPrefix:
        """The longest prefix in the cache."""
        if not table.root_key or not token_ids:
            return FoundPrefix(0, 0, is_awaited=False)
        limit = (len(token_ids) - 1) // self._block_size
        num_blocks = self._search.count_usable(table, token_ids, limit)
        next_key = self._chain.find_key(table, token_ids, num_blocks) if num_blocks < limit else b""
        num_tokens = num_blocks * self._block_size
        is_awaited = self._announced.is_made_for(next_key, table.priority)
        return FoundPrefix(num_blocks, num_tokens, is_awaited=is_awaited)

    def measure(
        self, table: BlockTable, found: FoundPrefix, num_tokens: int, spare: int
    ) -> tuple[int, int]:
        """Blocks that a start would take, in the group where most of them are missing; and how
        many are missing.
        """
        sizes = self._measure_each(table, found, num_tokens, spare)
        lacking, needed = max(sizes)
        return needed, lacking

    def note_lack(self, table: BlockTable, found: FoundPrefix, num_tokens: int, spare: int) -> None:
        """That start was not to be had: what is missing may come from the node's other models."""
        if self.shared.is_shared:
            sizes = self._measure_each(table, found, num_tokens, spare)
            self.shared.note_lack([lacking for lacking, _ in sizes])

    def note_full(self, table: BlockTable, end: int) -> None:
        """There was no room for computing up to `end`."""
        if self.shared.is_shared:
            groups = zip(self._groups, table.groups, strict=True)
            self.shared.note_lack([group.count_missing(held, end) for group, held in groups])

    def begin(
        self,
        table: BlockTable,
        found: FoundPrefix,
        token_ids: Sequence[int],
        *,
        spare: int,
        takes_floors: bool,
    ) -> bool:
        """Gives an empty table the found blocks and room for the rest of `token_ids`.

        False when that would not leave `spare` blocks in every group; nothing has changed then.
        """
        num_tokens = len(token_ids)
        for place, group in enumerate(self._groups):
            room = group.count_room(table.account_id, takes_floors=takes_floors)
            if self._price(table, place, found, num_tokens) + spare > room:
                return False
        if found.is_swapped:
            self._restore(table, token_ids, takes_floors=takes_floors)
        else:
            self._share(table, found, num_tokens, takes_floors=takes_floors)
        self._announce(table, token_ids, table.num_registered)
        return True

    def swap_out(self, table: BlockTable, num_tokens: int) -> bool:
        """Copies all blocks to the host, to be released then; False when there is no room.

        `num_tokens` are those whose KV will be in the blocks once the steps in flight are over.
        """
        end = -(-num_tokens // self._block_size)
        kept = [held.block_ids[: end - held.num_dropped] for held in table.groups]
        has_room = all(
            len(block_ids) <= group.host.num_free
            for group, block_ids in zip(self._groups, kept, strict=True)
        )
        has_all = all(
            held.num_dropped <= group.reach.find_first_block(num_tokens)
            for group, held in zip(self._groups, table.groups, strict=True)
        )
        if table.is_private or num_tokens < 1 or not (has_room and has_all):
            return False
        groups = tuple(
            (held.num_dropped, group.host.move_out(block_ids))
            for group, held, block_ids in zip(self._groups, table.groups, kept, strict=True)
        )
        table.swapped = SwappedBlocks(num_tokens, groups)
        return True

    def discard_swapped(self, table: BlockTable) -> None:
        """Gives up what a table left in host memory."""
        if table.swapped is not None:
            for group, (_, host_ids) in zip(self._groups, table.swapped.groups, strict=True):
                group.host.discard(host_ids)
            table.swapped = None

    def take_moves(self) -> HostMoves:
        """The moves that the next plan has to make."""
        moves = HostMoves()
        for group in self._groups:
            moves = moves.join(group.host.take_moves())
        return moves

    def note_done(self) -> None:
        """The oldest plan in flight is over."""
        self.shared.note_done()
        for group in self._groups:
            group.host.note_done()

    def is_inside_block(self, start: int) -> bool:
        """Token `start` goes where the one before it went, and no block falls out of reach: a table
        that had room for that one needs nothing.
        """
        return not self._has_local and start % self._block_size != 0

    def extend(self, table: BlockTable, start: int, end: int, *, takes_floors: bool) -> bool:
        """Makes room for computing tokens `start` to `end`; False when there is too little."""
        missing: list[int] = []
        for place, group in enumerate(self._groups):
            if group.reach.is_local:
                group.drop(table, place, start)
            missing.append(group.count_missing(table.groups[place], end))
        if not any(missing):
            return True
        for place, (group, count) in enumerate(zip(self._groups, missing, strict=True)):
            if not group.can_extend(table, place, count, takes_floors=takes_floors):
                return False
        for place, (group, count) in enumerate(zip(self._groups, missing, strict=True)):
            group.extend(table, place, count, takes_floors=takes_floors)
        return True

    def register(self, table: BlockTable, token_ids: Sequence[int], num_computed: int) -> None:
        """Makes full blocks known; of two in use with equal content the first stays known."""
        num_full = num_computed // self._block_size
        if not table.root_key or num_full <= table.num_registered:
            return
        owner = table.account_id if self._keeps_prefixes else None
        for index in range(table.num_registered, num_full):
            key = self._chain.find_key(table, token_ids, index)
            for group, held in zip(self._groups, table.groups, strict=True):
                if held.num_dropped <= index < held.end:
                    block_id = held.block_ids[index - held.num_dropped]
                    group.index.enter(key, block_id, owner)
            if index < table.num_announced:
                self._announced.withdraw(key, table.priority)
        table.num_registered = num_full

    def disown(self, table: BlockTable) -> Prefix:
        """What the table holds is not what its keys say: nobody finds it again, and it is zeroed
        when its last user leaves. Returns the names that are void, none of a private table.
        """
        for key in table.keys:
            for group in self._groups:
                group.index.withdraw(key)
        keys = () if table.is_private else tuple(table.keys)
        table.is_private = True
        return Prefix(table.account_id, table.root_key, keys)

    def release(self, table: BlockTable, *, is_spared: bool = True) -> None:
        """Takes back all blocks; what is in them can still be found unless it is private.

        `is_spared=False` where they are taken for somebody else: floors do not hold them back.
        """
        for key in table.keys[table.num_registered : table.num_announced]:
            self._announced.withdraw(key, table.priority)
        for place, group in enumerate(self._groups):
            group.release(table, place, is_spared=is_spared)
        table.num_registered = table.num_announced = 0

    def forget(self) -> None:
        """Takes note that all blocks, which nobody uses, have lost their content."""
        for group in self._groups:
            group.pool.forget()
        self.shared.forget()

    def take_new(self, table: BlockTable) -> NewBlocks:
        """The blocks that the executor has not been told of, which count as told from here."""
        for held in table.groups:
            if not held.is_told:
                break
        else:
            return self.nothing_new
        ids: list[tuple[BlockId, ...]] = []
        tags: list[tuple[int, ...]] = []
        for group, held in zip(self._groups, table.groups, strict=True):
            first = max(held.num_told - held.num_dropped, 0)
            new_ids = tuple(held.block_ids[first:])
            ids.append(new_ids)
            tags.append(tuple(group.pool.read_tag(block_id) for block_id in new_ids))
            held.num_told, held.num_dropped_told = held.end, held.num_dropped
        nums_dropped = tuple(held.num_dropped for held in table.groups)
        return NewBlocks(tuple(ids), tuple(tags), nums_dropped)

    def take_wiped(self) -> tuple[tuple[BlockId, ...], ...]:
        """The blocks of each group that are to be zeroed, forgotten with this; () when none."""
        if not self.has_wiped:
            return ()
        return tuple(group.pool.take_wiped() for group in self._groups)

    def count_held(self, table: BlockTable) -> int:
        """Blocks of the first group that are the table's alone: what its release would free."""
        return self._groups[0].count_alone(table.groups[0])

    def check(
        self, tables: Sequence[BlockTable], count_travelling: Callable[[int], int] = lambda _: 0
    ) -> None:
        """Asserts that the books are right; `tables` are all there are.

        `count_travelling` tells of each group how many host blocks land or leave.
        """
        for place, group in enumerate(self._groups):
            group.check([table.groups[place] for table in tables])
            swapped = [table.swapped for table in tables if table.swapped is not None]
            num_swapped = sum(len(blocks.groups[place][1]) for blocks in swapped)
            group.host.check(num_swapped + count_travelling(place))
        self._announced.check(
            (key, table.priority)
            for table in tables
            for key in table.keys[table.num_registered : table.num_announced]
        )

    def _measure_each(
        self, table: BlockTable, found: FoundPrefix, num_tokens: int, spare: int
    ) -> list[tuple[int, int]]:
        """Of each group, how many blocks a start lacks and how many it takes."""
        sizes: list[tuple[int, int]] = []
        for place, group in enumerate(self._groups):
            needed = self._price(table, place, found, num_tokens)
            room = group.count_room(table.account_id, takes_floors=False)
            sizes.append((max(0, needed + spare - room), needed))
        return sizes

    def _price(self, table: BlockTable, place: int, found: FoundPrefix, num_tokens: int) -> int:
        """Blocks of one group that a start or return takes."""
        group = self._groups[place]
        if found.is_swapped and table.swapped is not None:
            shared = group.list_shared(table.keys, found.num_blocks)
            return group.price_return(table.swapped.groups[place], shared, num_tokens)
        cached = group.list_cached(table.keys, found.num_blocks)
        return group.price(cached, found.num_blocks, num_tokens)

    def _share(
        self, table: BlockTable, found: FoundPrefix, num_tokens: int, *, takes_floors: bool
    ) -> None:
        """Gives a start the cached blocks and new ones."""
        self.discard_swapped(table)
        num_cached = found.num_blocks
        # All are found before any is taken, since taking one may cost another its content.
        shares = [group.list_cached(table.keys, num_cached) for group in self._groups]
        for place, (group, cached) in enumerate(zip(self._groups, shares, strict=True)):
            group.hold(table, place, cached, num_cached, num_tokens, takes_floors=takes_floors)
        table.num_registered = num_cached

    def _restore(self, table: BlockTable, token_ids: Sequence[int], *, takes_floors: bool) -> None:
        """Gives a return its blocks, which are announced as if they were computed once more: they
        can be found when the step that brings them back is over.
        """
        swapped, table.swapped = table.swapped, None
        assert swapped is not None, "nothing to return to"
        for place, group in enumerate(self._groups):
            group.share(table, place, group.list_shared(table.keys, swapped.num_shared))
        for place, (group, blocks) in enumerate(zip(self._groups, swapped.groups, strict=True)):
            group.restore(table, place, blocks, len(token_ids), takes_floors=takes_floors)
        table.num_registered = swapped.num_shared

    def _announce(self, table: BlockTable, token_ids: Sequence[int], first: int) -> None:
        """Tells others that the full blocks from `first` on are being computed."""
        if not table.root_key:
            return
        self._chain.extend_to(table, token_ids, len(token_ids) // self._block_size)
        for index in range(first, len(token_ids) // self._block_size):
            self._announced.add(self._chain.find_key(table, token_ids, index), table.priority)
            table.num_announced = index + 1
