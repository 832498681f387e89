"""What a core has of the KV memory that the models of a node share, what it wants and what it owes.

Owns how slabs come and go; must not know sequences, or who hands out (`server.kv_broker`). What is
granted becomes slabs as far as it makes whole ones, the rest is kept for the next grant. What is
owed goes as soon as nobody uses it, and counts as given when the step is over that gives it up.
Units: bytes. Read next: `slab_map`, `block_pool`.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from gpu_pool.kv.group_memory import GroupMemory
from gpu_pool.kv.slab_map import SlabMap
from gpu_pool.plan import BlockId, BlockRange

_BLOCKS_AHEAD: Final = 8
"""Wished beyond what is needed soon: fewer words."""


class RoomWish(msgspec.Struct, frozen=True, array_like=True):
    """What a core would have beside what it has."""

    num_bytes: int = 0
    is_urgent: bool = False
    """Somebody waits for it; else only more prefixes would be kept, or nobody would have to give
    way who does not yet."""


class _SharedGroup(NamedTuple):
    """A group whose memory comes and goes."""

    place: int
    group: GroupMemory
    slabs: SlabMap
    slab_bytes: int

    @property
    def free_share(self) -> float:
        """Of its blocks that are there, the part that nobody uses."""
        return self.group.pool.num_free / self.group.pool.num_blocks

    def measure_pressure(self, num_running: int) -> int:
        """Bytes of slabs that keep the next blocks from costing content that could be found, or
        somebody's place; 0 while one for each who runs, and half a slab, is blank.
        """
        num_needed = num_running + self.slabs.blocks_each // 2 + 1
        num_blank = self.group.pool.num_blank
        if num_blank >= num_needed:
            return 0
        num_slabs = -(-(num_needed + _BLOCKS_AHEAD - num_blank) // self.slabs.blocks_each)
        return min(num_slabs, self.slabs.num_closed) * self.slab_bytes


class SharedRoom:
    """One core's part in the shared memory; without groups in slabs it never wants nor has any."""

    def __init__(self, groups: Sequence[GroupMemory]) -> None:
        """Has nothing beyond what is the model's own."""
        self._groups = [
            _SharedGroup(place, group, slabs, slabs.blocks_each * group.block_bytes)
            for place, group in enumerate(groups)
            if (slabs := group.pool.slabs) is not None
        ]
        self._unspent = 0
        """Granted, and less than a slab."""
        self._owed = 0
        self._told_late = 0
        """What was owed, and could not go, when that was told last."""
        self._urgent = 0
        """What somebody waits for who could not start, or had to give way; what was granted since
        is off it."""
        self._is_fresh = False
        """Nobody has told of a lack since the step began."""
        self._wish = RoomWish()
        """What was told last, less what was granted since."""
        self._leaving: list[BlockRange] = []
        self._leaving_bytes = 0
        self._in_flight: deque[int] = deque()
        """What each plan in flight gives up."""
        self._given = 0
        """What is another's to have, and nobody was told so far."""

    @property
    def is_shared(self) -> bool:
        """False where all memory is the model's own."""
        return bool(self._groups)

    @property
    def has_leaving(self) -> bool:
        """True while slabs wait for a plan that gives them up."""
        return bool(self._leaving)

    @property
    def num_bytes(self) -> int:
        """What the core has of the shared memory, slabs on their way included."""
        in_slabs = sum(part.slab_bytes * part.slabs.num_extra for part in self._groups)
        return in_slabs + self._unspent + self._leaving_bytes + sum(self._in_flight) + self._given

    # -- what is wanted --------------------------------------------------------------------------

    def begin_step(self) -> None:
        """What is lacking is about to be found out anew."""
        self._is_fresh = True

    def note_lack(self, nums_lacking: Sequence[int]) -> None:
        """So many blocks of each group are missing for somebody to start or go on."""
        lack = 0
        for part in self._groups:
            num_slabs = -(-nums_lacking[part.place] // part.slabs.blocks_each)
            lack += min(num_slabs, part.slabs.num_closed) * part.slab_bytes
        lack = max(0, lack - self._unspent)
        self._urgent = lack if self._is_fresh else max(self._urgent, lack)
        self._is_fresh = False

    def take_wish(self, num_running: int, *, is_waited: bool) -> RoomWish | None:
        """What the core would have. Nobody waits for it unless `is_waited`. None where it is as it
        was told last, or less.
        """
        if not is_waited:
            self._urgent = 0
        pressure = sum(part.measure_pressure(num_running) for part in self._groups)
        pressure = max(0, pressure - self._unspent)
        wish = RoomWish(self._urgent or pressure, is_urgent=self._urgent > 0)
        is_more = wish.num_bytes > self._wish.num_bytes or wish.is_urgent != self._wish.is_urgent
        if not (is_more if wish.num_bytes else self._wish.num_bytes):
            return None
        self._wish = wish
        return wish

    # -- what comes ------------------------------------------------------------------------------

    def take_grant(self, num_bytes: int) -> None:
        """So much more is this core's."""
        self._unspent += num_bytes
        self._urgent = max(0, self._urgent - num_bytes)
        missing = max(0, self._wish.num_bytes - num_bytes)
        self._wish = RoomWish(missing, self._wish.is_urgent)
        while growing := [
            part
            for part in self._groups
            if part.slabs.num_closed and part.slab_bytes <= self._unspent
        ]:
            poorest = min(growing, key=lambda part: part.free_share)
            self._unspent -= poorest.slab_bytes
            poorest.group.pool.open_slab()

    # -- what goes -------------------------------------------------------------------------------

    def take_claim(self, num_bytes: int) -> None:
        """So much more is to go, as it becomes unused; 0: nothing is owed any more."""
        self._owed = self._owed + num_bytes if num_bytes else 0

    def part_with_owed(self, num_kept: int) -> None:
        """Lets go of what is owed and can go now; `num_kept` free blocks are left in each group."""
        if not self._owed:
            return
        spare = min(self._owed, self._unspent)
        self._unspent -= spare
        self._owed -= spare
        self._given += spare
        while self._owed > 0 and self._part_with_slab(num_kept):
            pass

    def _part_with_slab(self, num_kept: int) -> bool:
        """Lets a slab go, of the group with the largest part free that has one to give."""
        for part in sorted(self._groups, key=lambda part: -part.free_share):
            blocks = part.group.pool.close_slab(num_kept + part.group.num_promised)
            if blocks is not None:
                first, end = BlockId(blocks.start), BlockId(blocks.stop)
                self._leaving.append(BlockRange(part.place, first, end))
                self._leaving_bytes += part.slab_bytes
                self._owed = max(0, self._owed - part.slab_bytes)
                return True
        return False

    def take_leaving(self) -> tuple[BlockRange, ...]:
        """What the plan in the making gives up."""
        leaving = tuple(self._leaving)
        self._in_flight.append(self._leaving_bytes)
        self._leaving, self._leaving_bytes = [], 0
        return leaving

    def note_done(self) -> None:
        """The oldest plan in flight is over, and what it gave up is gone."""
        self._given += self._in_flight.popleft()

    def take_given(self) -> int:
        """What nobody was told of so far, which is told with this."""
        given, self._given = self._given, 0
        return given

    def take_late(self) -> int | None:
        """What is owed and could not go so far; None where it is what was told last."""
        if self._owed == self._told_late:
            return None
        self._told_late = self._owed
        return self._owed

    def forget(self) -> None:
        """The memory has lost all it held, or is asleep: only the core's own comes back."""
        assert not self._leaving, "a plan is due"
        assert not any(self._in_flight), "a plan is under way"
        self._given += self._unspent
        self._owed = self._urgent = self._unspent = 0
        for part in self._groups:
            while part.group.pool.close_slab(0) is not None:
                self._given += part.slab_bytes
