"""KV that comes from elsewhere: another node, a file, a store.

Owns the host blocks that a source fills while its sequence waits. When all have landed, it starts
with them as one that returns from a preemption does; else it computes its prompt. Blocks of a
landing that was given up are in quarantine until the source says that nothing writes to them any
more: time is no proof of that. No account's landings take the room of another's (`HostPool`). Must
not know how bytes travel.
Read next: `host_run`, `kv_memory` (starts with what has landed), `export` (the other direction).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from gpu_pool.kv.block import BlockTable, SwappedBlocks
from gpu_pool.kv.group_memory import GroupMemory
from gpu_pool.kv.host_run import HostRun, Prefix
from gpu_pool.plan import SequenceId


@dataclass(frozen=True, slots=True)
class Offer:
    """What a source would bring for a sequence."""

    num_blocks: int
    """Leading blocks of the prefix, those that are cached here included."""
    deadline_ms: int
    """The sequence waits no longer than this."""
    is_divisible: bool = False
    """Less is of use as well: where there is room for less, and where less lands. Only of models
    whose layers all look back to the start."""
    leaves_room: bool = False
    """A quarter of all host blocks is left to other uses (`HostPool.count_fetchable`). To other
    accounts their part is left in any case (`HostPool.count_landable`)."""
    extend: Callable[[], int] | None = None
    """Asked when the deadline has come: a later one while the landing gets on. Same unit."""


class LandingEnd(NamedTuple):
    """A source writes to the blocks of this sequence no more."""

    sequence_id: SequenceId
    has_landed: bool
    """Every block holds, verified, what its key names."""
    num_blocks: int = 0
    """Leading blocks of the prefix of which that is true at least, where an offer was divisible."""


class KvSource(Protocol):
    """Brings KV. Called by the engine core's thread, which no call may hold up; whatever takes time
    happens elsewhere and wakes the core when it is over.
    """

    def find(self, sequence_id: SequenceId, prefix: Prefix, num_cached: int) -> Offer | None:
        """What it would bring for a new sequence; None: nothing that pays.

        `num_cached` leading blocks need no bringing.
        """
        ...

    def start(self, sequence_id: SequenceId, prefix: Prefix, runs: tuple[HostRun, ...]) -> None:
        """Begins to fill host blocks; exactly one `LandingEnd` follows.

        Several runs may be of one group, and a group of which nothing is missing has none.
        """
        ...

    def decline(self, sequence_id: SequenceId) -> None:
        """Nothing is to be brought for this sequence, whether it was offered or not."""
        ...

    def cancel(self, sequence_id: SequenceId) -> int:
        """Nobody waits for what was started. Its `LandingEnd` comes when nothing is written any
        more; how many leading blocks of the prefix are there already and stay as they are, where a
        part was offered, else 0.
        """
        ...

    def poll(self) -> Sequence[LandingEnd]:
        """The ends since the last call."""
        ...


@dataclass(slots=True, eq=False)
class _Live:
    """A landing that has not ended."""

    source: KvSource
    runs: tuple[HostRun, ...]
    num_blocks: int
    num_shared: int
    deadline_ms: int
    table: BlockTable | None
    """None: in quarantine."""
    is_divisible: bool
    extend: Callable[[], int] | None = None

    def is_late(self, now_ms: int) -> bool:
        """True when the sequence has waited for as long as it will."""
        if self.extend is not None and self.deadline_ms <= now_ms:
            self.deadline_ms = self.extend()
        return self.deadline_ms <= now_ms


class Landings:
    """All landings of one model."""

    def __init__(
        self, groups: Sequence[GroupMemory], block_size: int, sources: Sequence[KvSource]
    ) -> None:
        """None has begun. Of several sources the first that offers something is taken."""
        self._groups = groups
        self._block_size = block_size
        self._sources = tuple(sources)
        self._live: dict[SequenceId, _Live] = {}
        self.num_awaited = 0
        """Landings that a sequence waits for."""

    @property
    def has_sources(self) -> bool:
        """False when nothing ever comes."""
        return bool(self._sources)

    @property
    def next_deadline_ms(self) -> int | None:
        """When the first sequence stops to wait; None when none waits."""
        awaited = [live.deadline_ms for live in self._live.values() if live.table is not None]
        return min(awaited, default=None)

    def list_awaited(self) -> list[SequenceId]:
        """The sequences that wait for theirs."""
        if not self.num_awaited:
            return []
        return [number for number, live in self._live.items() if live.table is not None]

    def open(
        self,
        sequence_id: SequenceId,
        table: BlockTable,
        prefix: Prefix,
        num_cached: int,
        latest_ms: int,
    ) -> bool:
        """Lets a new sequence wait for what a source offers; False: it need not wait.

        `latest_ms` is the sequence's own deadline. A source that is not to bring anything has
        been told so in either case.
        """
        chosen: KvSource | None = None
        for source in self._sources:
            if chosen is None and prefix.keys and sequence_id not in self._live:
                live = self._reserve(source, sequence_id, table, prefix, num_cached)
                if live is not None:
                    live.deadline_ms = min(live.deadline_ms, latest_ms)
                    self._live[sequence_id] = live
                    chosen = source
                    continue
            source.decline(sequence_id)
        if chosen is None:
            return False
        table.is_landing = True
        self.num_awaited += 1
        chosen.start(sequence_id, prefix, self._live[sequence_id].runs)
        return True

    def decline(self, sequence_id: SequenceId) -> None:
        """Tells all sources that a sequence wants nothing, or is none."""
        for source in self._sources:
            source.decline(sequence_id)

    def give_up(self, sequence_id: SequenceId, table: BlockTable) -> None:
        """Nobody waits for a sequence's landing any more; its blocks are in quarantine."""
        if table.is_landing:
            self._leave(sequence_id, self._live[sequence_id], table)

    def poll(self, now_ms: int) -> list[SequenceId]:
        """Sequences that wait no more: their KV is there, or will not come in time."""
        if not self._live:
            return []
        over: list[SequenceId] = []
        for source in self._sources:
            for end in source.poll():
                live = self._live.pop(end.sequence_id)
                if live.table is not None:
                    live = self._cut(live, live.num_blocks if end.has_landed else end.num_blocks)
                if live.table is not None and live.runs:
                    live.table.swapped = self._describe(live)
                else:
                    self._give_back(live.runs)
                if live.table is not None:
                    live.table.is_landing = False
                    self.num_awaited -= 1
                    over.append(end.sequence_id)
        for sequence_id, live in self._live.items():
            table = live.table
            if table is not None and live.is_late(now_ms):
                self._take_part(live, table, self._leave(sequence_id, live, table))
                over.append(sequence_id)
        return over

    def count_held(self, place: int) -> int:
        """Host blocks of one group that are being filled or in quarantine; for checks."""
        runs = [run for live in self._live.values() for run in live.runs]
        return sum(len(run.host_ids) for run in runs if run.group == place)

    def _reserve(
        self,
        source: KvSource,
        sequence_id: SequenceId,
        table: BlockTable,
        prefix: Prefix,
        num_cached: int,
    ) -> _Live | None:
        """Room for what `source` offers; None when it offers nothing or there is none."""
        offer = source.find(sequence_id, prefix, num_cached)
        if offer is None or offer.num_blocks <= num_cached:
            return None
        num_shared = min(self._count_shared(prefix), offer.num_blocks)
        end = offer.num_blocks
        rooms = [
            group.host.count_fetchable(prefix.account_id)
            if offer.leaves_room
            else group.host.count_landable(prefix.account_id)
            for group in self._groups
        ]
        if offer.is_divisible:
            end = min(end, num_shared + min(rooms))
        firsts = [
            group.reach.find_first_block(end * self._block_size)
            if group.reach.is_local
            else num_shared
            for group in self._groups
        ]
        if any(end - first > room for room, first in zip(rooms, firsts, strict=True)):
            return None
        runs = tuple(
            HostRun(
                place,
                first,
                group.host.land(end - first, prefix.account_id),
                prefix.keys[first:end],
            )
            for place, (group, first) in enumerate(zip(self._groups, firsts, strict=True))
            if first < end
        )
        if not runs:
            return None
        return _Live(
            source,
            runs,
            end,
            num_shared,
            offer.deadline_ms,
            table,
            offer.is_divisible,
            offer.extend,
        )

    def _count_shared(self, prefix: Prefix) -> int:
        """Leading blocks that every group which keeps everything has in its cache."""
        whole = [group for group in self._groups if not group.reach.is_local]
        for index, key in enumerate(prefix.keys):
            if any(group.index.find(key) is None for group in whole):
                return index
        return len(prefix.keys)

    def _leave(self, sequence_id: SequenceId, live: _Live, table: BlockTable) -> int:
        """A sequence does not wait any more; how much is there, as its source says."""
        table.is_landing = False
        self.num_awaited -= 1
        live.table = None
        return live.source.cancel(sequence_id)

    def _take_part(self, live: _Live, table: BlockTable, num_blocks: int) -> None:
        """A late landing's sequence starts with what is there; the rest stays in quarantine."""
        if live.is_divisible and num_blocks > live.num_shared:
            taken, live.runs = _divide(live.runs, num_blocks)
            part = replace(live, runs=taken, num_blocks=min(num_blocks, live.num_blocks))
            table.swapped = self._describe(part)

    def _cut(self, live: _Live, num_blocks: int) -> _Live:
        """A landing of its first blocks only, the rest of which is free; without runs if that is
        of no use.
        """
        if num_blocks >= live.num_blocks:
            return live
        if not live.is_divisible or num_blocks <= live.num_shared:
            self._give_back(live.runs)
            return replace(live, runs=())
        runs, rest = _divide(live.runs, num_blocks)
        self._give_back(rest)
        return replace(live, runs=runs, num_blocks=num_blocks)

    def _describe(self, live: _Live) -> SwappedBlocks:
        """What has landed, as a preemption would have left it."""
        by_group = {run.group: run for run in live.runs}
        groups = tuple(
            (by_group[place].first, by_group[place].host_ids)
            if place in by_group
            else (live.num_blocks, ())
            for place in range(len(self._groups))
        )
        return SwappedBlocks(live.num_blocks * self._block_size, groups, live.num_shared)

    def _give_back(self, runs: Sequence[HostRun]) -> None:
        """Frees host blocks that nobody writes to."""
        for run in runs:
            self._groups[run.group].host.give_back(run.host_ids)


def _divide(
    runs: Sequence[HostRun], num_blocks: int
) -> tuple[tuple[HostRun, ...], tuple[HostRun, ...]]:
    """What of `runs` is among the prefix's first blocks, and the rest; all begin before its end."""
    counts = [num_blocks - run.first for run in runs]
    pairs = list(zip(runs, counts, strict=True))
    return (
        tuple(
            HostRun(run.group, run.first, run.host_ids[:count], run.keys[:count])
            for run, count in pairs
        ),
        tuple(
            HostRun(run.group, run.first + count, run.host_ids[count:], run.keys[count:])
            for run, count in pairs
        ),
    )
