"""KV that leaves: copies in host memory of what sequences compute, for whoever takes it along.

Owns which blocks are copied and who still needs the copies. A block is copied in the step that
completes it and handed to the sink when that step is over; it stays as it is until the sink gives
it back. Must not know where it goes. Read next: `host_run`, `landing` (the other direction).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NewType, Protocol

from contracts.ids import AccountId
from gpu_pool.kv.block import BlockTable
from gpu_pool.kv.group_memory import GroupMemory
from gpu_pool.kv.host_run import HostRun, Prefix
from gpu_pool.plan import HostBlockId, SequenceId

ChunkId = NewType("ChunkId", int)
"""Blocks that were handed to a sink together."""


@dataclass(frozen=True, slots=True)
class ExportOrder:
    """What a sink wants of a sequence."""

    num_blocks: int | None
    """Leading blocks, and of groups that look back only so far those that later tokens read; None:
    every block that is completed."""
    first: int = 0
    """Blocks before this one are not wanted, except of groups that look back only so far."""
    is_firm: bool = False
    """Room for all is taken at once, or the sequence is refused: nobody may ever fetch what it
    orders, so it has to leave room for others (`HostPool.fits_firmly`). Else what finds no room is
    copied by later steps, as long as the sequence has the blocks, and half of all room is left to
    others: a sink that is slow keeps its copies for long."""


@dataclass(frozen=True, slots=True)
class ExportedChunk:
    """Blocks that hold what their keys name."""

    chunk_id: ChunkId
    sequence_id: SequenceId
    prefix: Prefix
    """Whose they are; its keys reach as far as the blocks do."""
    runs: tuple[HostRun, ...]


class KvSink(Protocol):
    """Takes KV along. Called by the engine core's thread, which no call may hold up."""

    def find(self, sequence_id: SequenceId, prefix: Prefix) -> ExportOrder | None:
        """What it wants of a new sequence, whose prompt `prefix` names; None: nothing."""
        ...

    def take(self, chunk: ExportedChunk) -> None:
        """Blocks that nobody writes to until `poll` has named the chunk."""
        ...

    def end(self, sequence_id: SequenceId, *, is_whole: bool) -> None:
        """No further chunk comes; `is_whole` where all that was ordered has come.

        Told of sequences, too, that could not be asked about: refused, or of retention `none`.
        """
        ...

    def poll(self) -> Sequence[ChunkId]:
        """Chunks that are not needed any more, each named once."""
        ...

    def disown(self, void: Prefix) -> None:
        """Blocks of these names are wrong, whoever has computed them; chunks that were handed over
        before may be among them.
        """
        ...


@dataclass(slots=True, eq=False)
class Export:
    """What is copied of one sequence."""

    sequence_id: SequenceId
    account_id: AccountId
    sink: KvSink
    order: ExportOrder
    next_blocks: list[int]
    """Per group the index of the first block that was not copied."""
    reserved: list[list[HostBlockId]]
    """Per group what is left of the room that was taken at once."""
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class _Copy:
    """Blocks that a step in flight copies."""

    step: int
    export: Export
    table: BlockTable
    runs: tuple[HostRun, ...]
    """Without keys, which are known when the step is over."""


class Exports:
    """All copies of one model."""

    def __init__(
        self, groups: Sequence[GroupMemory], block_size: int, sinks: Sequence[KvSink]
    ) -> None:
        """None. Of several sinks the first that wants something of a sequence gets it."""
        self._groups = groups
        self._block_size = block_size
        self._sinks = tuple(sinks)
        self._live: dict[SequenceId, Export] = {}
        self._copies: list[_Copy] = []
        self._leased: dict[ChunkId, tuple[Export, tuple[HostRun, ...]]] = {}
        self._num_chunks = 0
        self._num_ordered: Counter[tuple[AccountId, int]] = Counter()
        """Host blocks of firm orders, by account and group."""
        self._num_firm = [0 for _ in groups]
        """The same of all accounts, by group."""

    @property
    def has_sinks(self) -> bool:
        """False when nothing ever leaves."""
        return bool(self._sinks)

    def open(self, sequence_id: SequenceId, prefix: Prefix) -> bool:
        """Finds out who wants the KV of a new sequence; False when there is no room for what has
        to be taken at once.
        """
        for sink in self._sinks:
            order = sink.find(sequence_id, prefix)
            if order is None:
                continue
            firsts = [self._find_first(place, order) for place in range(len(self._groups))]
            nothing: list[list[HostBlockId]] = [[] for _ in self._groups]
            export = Export(sequence_id, prefix.account_id, sink, order, firsts, nothing)
            if order.is_firm and not self._reserve(export):
                sink.end(sequence_id, is_whole=False)
                return False
            self._live[sequence_id] = export
            return True
        return True

    def plan(self, step: int, sequence_id: SequenceId, table: BlockTable, end: int) -> None:
        """Has the blocks copied that are complete when the step has computed up to token `end`."""
        export = self._live.get(sequence_id)
        if export is None:
            return
        num_full = end // self._block_size
        if export.order.num_blocks is not None:
            num_full = min(num_full, export.order.num_blocks)
        counts = [max(0, num_full - first) for first in export.next_blocks]
        if not any(counts):
            return
        if not export.order.is_firm:  # the rest follows while the sequence goes on
            room = zip(self._groups, counts, strict=True)
            counts = [min(count, group.host.num_spare) for group, count in room]
        runs: list[HostRun] = []
        for place, (group, count) in enumerate(zip(self._groups, counts, strict=True)):
            held, first = table.groups[place], export.next_blocks[place]
            skipped = min(count, max(0, held.num_dropped - first))
            export.next_blocks[place] += count
            first, count = first + skipped, count - skipped
            if count:
                host_ids = self._take_room(export, place, count)
                start = first - held.num_dropped
                group.host.copy_out(held.block_ids[start : start + count], host_ids)
                runs.append(HostRun(place, first, host_ids, ()))
        if runs:
            self._copies.append(_Copy(step, export, table, tuple(runs)))

    def note_done(self, step: int) -> None:
        """A step is over, and the keys of what it has computed are known."""
        while self._copies and self._copies[0].step <= step:
            copy = self._copies.pop(0)
            export, keys = copy.export, copy.table.keys
            end = max(run.first + len(run.host_ids) for run in copy.runs)
            if export.is_over or end > len(keys):
                self._give_back(export, copy.runs)
                continue
            runs = tuple(
                HostRun(
                    run.group,
                    run.first,
                    run.host_ids,
                    tuple(keys[run.first : run.first + len(run.host_ids)]),
                )
                for run in copy.runs
            )
            self._num_chunks += 1
            chunk_id = ChunkId(self._num_chunks)
            self._leased[chunk_id] = export, runs
            table = copy.table
            prefix = Prefix(table.account_id, table.root_key, tuple(keys[:end]), table.regions)
            export.sink.take(ExportedChunk(chunk_id, export.sequence_id, prefix, runs))

    def decline(self, sequence_id: SequenceId) -> None:
        """Tells all sinks that nothing leaves of a sequence."""
        for sink in self._sinks:
            sink.end(sequence_id, is_whole=False)

    def disown(self, sequence_id: SequenceId, void: Prefix) -> None:
        """Copies no more of a sequence, and has sinks give up what stands under `void`."""
        self.close(sequence_id, is_void=True)
        for sink in self._sinks:
            sink.disown(void)

    def close(self, sequence_id: SequenceId, *, is_void: bool = False) -> None:
        """Copies no more of a sequence; of what `is_void` it says that it was not all."""
        export = self._live.pop(sequence_id, None)
        if export is None:
            return
        export.is_over = True
        for place, host_ids in enumerate(export.reserved):
            self._free(export, place, host_ids)
        wanted = export.order.num_blocks
        is_copying = any(copy.export is export for copy in self._copies)
        has_all = not is_copying and all(first >= (wanted or 0) for first in export.next_blocks)
        export.sink.end(sequence_id, is_whole=has_all and not is_void)

    def poll(self) -> None:
        """Frees what sinks need no more."""
        for sink in self._sinks:
            for chunk_id in sink.poll():
                self._give_back(*self._leased.pop(chunk_id))

    def count_held(self, place: int) -> int:
        """Host blocks of one group that are reserved, being written or leased; for checks."""
        runs = [run for copy in self._copies for run in copy.runs]
        runs += [run for _, leased in self._leased.values() for run in leased]
        num_reserved = sum(len(export.reserved[place]) for export in self._live.values())
        return num_reserved + sum(len(run.host_ids) for run in runs if run.group == place)

    def _find_first(self, place: int, order: ExportOrder) -> int:
        """The first block of a group that is wanted."""
        reach = self._groups[place].reach
        if not reach.is_local:
            return order.first
        if order.num_blocks is None:
            return 0
        return reach.find_first_block(order.num_blocks * self._block_size)

    def _reserve(self, export: Export) -> bool:
        """Takes room for everything; False when there is too little for the account, and nothing is
        taken.
        """
        assert export.order.num_blocks is not None, "room for what has no end"
        counts = [max(0, export.order.num_blocks - first) for first in export.next_blocks]
        for place, (group, count) in enumerate(zip(self._groups, counts, strict=True)):
            num_own = self._num_ordered[export.account_id, place]
            if not group.host.fits_firmly(count, num_own, self._num_firm[place]):
                return False
        for place, (group, count) in enumerate(zip(self._groups, counts, strict=True)):
            export.reserved[place] = list(group.host.reserve(count))
            self._count_firm(export, place, count)
        return True

    def _take_room(self, export: Export, place: int, count: int) -> tuple[HostBlockId, ...]:
        """Host blocks to copy to."""
        if not export.order.is_firm:
            return self._groups[place].host.reserve(count)
        reserved = export.reserved[place]
        return tuple(reserved.pop() for _ in range(count))

    def _give_back(self, export: Export, runs: Sequence[HostRun]) -> None:
        """Frees copies that nobody reads or writes."""
        for run in runs:
            self._free(export, run.group, run.host_ids)

    def _free(self, export: Export, place: int, host_ids: Sequence[HostBlockId]) -> None:
        """Frees host blocks of one group."""
        self._groups[place].host.give_back(host_ids)
        if export.order.is_firm:
            self._count_firm(export, place, -len(host_ids))

    def _count_firm(self, export: Export, place: int, count: int) -> None:
        """Keeps the sums of what firm orders hold; no account stays in them that holds nothing."""
        ordered = export.account_id, place
        self._num_firm[place] += count
        self._num_ordered[ordered] += count
        if not self._num_ordered[ordered]:
            del self._num_ordered[ordered]
