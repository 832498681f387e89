"""Blocks of host memory: for preempted sequences, and for KV that comes from elsewhere or leaves.

Owns one group's host blocks and the moves a plan has to make; must not know what is in them. A plan
moves out first, in later, and copies out last. Others write to reserved blocks at any time, so what
a plan still touches is free only when its result is there.
Read next: `kv_memory`, `landing` and `export` (reserve), `gpu_pool.plan.BlockMove`.
"""

from collections import Counter, deque
from collections.abc import Sequence
from typing import NamedTuple

from contracts.ids import AccountId
from gpu_pool.plan import BlockId, BlockMove, HostBlockId


class HostMoves(NamedTuple):
    """What one plan moves between the device and the host."""

    out: tuple[BlockMove, ...] = ()
    back: tuple[BlockMove, ...] = ()
    copied: tuple[BlockMove, ...] = ()

    def join(self, other: "HostMoves") -> "HostMoves":
        """These moves and those of another group."""
        return HostMoves(self.out + other.out, self.back + other.back, self.copied + other.copied)


class HostPool:
    """All host blocks of one group."""

    def __init__(self, group: int, num_blocks: int) -> None:
        """`group` is the index that moves bear."""
        self._group = group
        self._num_blocks = num_blocks
        self._free = [HostBlockId(index) for index in reversed(range(num_blocks))]
        self._freed_later: list[HostBlockId] = []
        self._freed_by: deque[list[HostBlockId]] = deque()
        """One entry per plan in flight."""
        self._landed_for: dict[HostBlockId, AccountId] = {}
        """Whose KV is brought to a block, until it is free."""
        self._num_landed: Counter[AccountId] = Counter()
        """Such blocks by account; none stays that has none."""
        self._out: list[BlockMove] = []
        self._in: list[BlockMove] = []
        self._copied: list[BlockMove] = []

    @property
    def num_blocks(self) -> int:
        """All there are."""
        return self._num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that can be taken now."""
        return len(self._free)

    @property
    def num_spare(self) -> int:
        """Those of them for what may as well be left: half of all are kept for what may not."""
        return max(0, self.num_free - self._num_blocks // 2)

    def count_fetchable(self, account_id: AccountId) -> int:
        """Those of them for what an account would compute else: a quarter of all is kept for
        hand-overs and preempted sequences, more than copies get, which a slow drive may keep at
        their bound, and of the rest it leaves others their part.
        """
        room = self.num_free - self._num_blocks + _bound_lent(self._num_blocks)
        return self._bound_share(room, self._num_landed[account_id])

    def count_landable(self, account_id: AccountId) -> int:
        """Those of them for what another node has computed for an account: it leaves others their
        part, whether it was brought by nodes or from tiers.
        """
        return self._bound_share(self.num_free, self._num_landed[account_id])

    def fits_firmly(self, count: int, num_own: int, num_firm: int) -> bool:
        """True when `count` blocks may be taken that others keep for as long as they like.

        `num_own` are held like that for the same account already, `num_firm` for all. All together
        leave a quarter of the blocks to those who come back or bring KV.
        """
        room = min(_bound_lent(self._num_blocks) - num_firm, self.num_free)
        return count <= self._bound_share(room, num_own)

    def _bound_share(self, room: int, num_own: int) -> int:
        """How many of `room` blocks an account may take that has `num_own`: it leaves as many as it
        has then, or a quarter of all. So one has all but that quarter where nobody else has any,
        and whoever has none finds some, however many others take theirs.
        """
        num_enough = _bound_lent(self._num_blocks) - bound_account(self._num_blocks)
        return max(0, (room - num_own) // 2, room - num_enough)

    def move_out(self, block_ids: Sequence[BlockId]) -> tuple[HostBlockId, ...]:
        """Host blocks that will hold what `block_ids` hold now. Only while enough are free."""
        taken = self.reserve(len(block_ids))
        self._out += map(self._create_move, block_ids, taken)
        return taken

    def move_in(self, host_ids: Sequence[HostBlockId], block_ids: Sequence[BlockId]) -> None:
        """Lets `block_ids` hold what `host_ids` hold, which are free then."""
        self._in += map(self._create_move, block_ids, host_ids)
        self._freed_later += host_ids

    def discard(self, host_ids: Sequence[HostBlockId]) -> None:
        """Frees blocks whose content nobody needs; plans in flight may still write to them."""
        self._freed_later += host_ids

    def reserve(self, count: int) -> tuple[HostBlockId, ...]:
        """Blocks that no plan touches. Only while enough are free."""
        assert count <= len(self._free), "more host blocks than are free"
        return tuple(self._free.pop() for _ in range(count))

    def land(self, count: int, account_id: AccountId) -> tuple[HostBlockId, ...]:
        """Blocks that an account's KV is brought to; they count as its own until they are free."""
        taken = self.reserve(count)
        self._landed_for.update(dict.fromkeys(taken, account_id))
        self._num_landed[account_id] += count
        return taken

    def copy_out(self, block_ids: Sequence[BlockId], host_ids: Sequence[HostBlockId]) -> None:
        """Lets reserved blocks hold what `block_ids` will hold when the next plan has computed."""
        self._copied += map(self._create_move, block_ids, host_ids)

    def give_back(self, host_ids: Sequence[HostBlockId]) -> None:
        """Frees reserved blocks that neither a plan nor anybody else writes to."""
        self._free += host_ids
        for host_id in host_ids if self._landed_for else ():
            account_id = self._landed_for.pop(host_id, None)
            if account_id is not None:
                self._num_landed[account_id] -= 1
                if not self._num_landed[account_id]:
                    del self._num_landed[account_id]

    def take_moves(self) -> HostMoves:
        """The moves since the last call; one call per plan."""
        moves = HostMoves(tuple(self._out), tuple(self._in), tuple(self._copied))
        self._out, self._in, self._copied = [], [], []
        self._freed_by.append(self._freed_later)
        self._freed_later = []
        return moves

    def note_done(self) -> None:
        """The oldest plan in flight is over: what it freed is free."""
        self.give_back(self._freed_by.popleft())

    def check(self, num_held: int) -> None:
        """Asserts that no block is missing."""
        num_freed = len(self._freed_later) + sum(map(len, self._freed_by))
        num_known = len(self._free) + num_freed + num_held
        assert num_known == self._num_blocks, "host blocks have leaked"
        assert self._num_landed == Counter(self._landed_for.values()), "landings are miscounted"
        assert self._landed_for.keys().isdisjoint(self._free), "a free block is somebody's"

    def _create_move(self, block_id: BlockId, host_id: HostBlockId) -> BlockMove:
        """A move between the two, either way."""
        return BlockMove(self._group, block_id, host_id)


def bound_account(num_blocks: int) -> int:
    """How many of a group's host blocks one account may have brought, or kept for other nodes."""
    return num_blocks // 2


def _bound_lent(num_blocks: int) -> int:
    """How many of them all accounts may, either way; the other quarter is never theirs."""
    return 3 * num_blocks // 4
