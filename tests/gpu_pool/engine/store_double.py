"""A store beside the executor double: takes KV along and brings it back, late, badly or not at all.

What it brings for a landing that was given up it keeps writing until it says that it is over, so
that a block handed out too early would hold it.
"""

from dataclasses import dataclass, field
from random import Random

from gpu_pool.engine.double_tokens import Digest
from gpu_pool.engine.executor_double import ExecutorDouble
from gpu_pool.engine.passage import Carriers
from gpu_pool.kv.export import ChunkId, ExportedChunk, ExportOrder
from gpu_pool.kv.host_run import HostRun, Prefix
from gpu_pool.kv.landing import LandingEnd, Offer
from gpu_pool.plan import SequenceId

POISON = dict.fromkeys(range(64), b"somebody else's")


@dataclass(slots=True)
class Landing:
    """One landing under way."""

    runs: tuple[HostRun, ...]
    is_cancelled: bool = False


@dataclass(slots=True)
class StoreDouble:
    """Source and sink; `random` says how it behaves."""

    executor: ExecutorDouble
    random: Random
    patience_ms: int = 20
    failure_rate: float = 0.2
    order: ExportOrder = field(default_factory=lambda: ExportOrder(None))
    now_ms: int = 0
    content: dict[tuple[int, bytes], dict[int, Digest]] = field(default_factory=dict)
    landings: dict[SequenceId, Landing] = field(default_factory=dict)
    taken: list[ChunkId] = field(default_factory=list)
    leased: list[ExportedChunk] = field(default_factory=list)
    ends: dict[SequenceId, bool] = field(default_factory=dict)
    voids: list[Prefix] = field(default_factory=list)
    num_landed: int = 0
    num_refused: int = 0

    def to_carriers(self) -> Carriers:
        return Carriers((Source(self),), (Sink(self),))


@dataclass(slots=True)
class Source:
    """The way in."""

    store: StoreDouble

    def find(self, sequence_id: SequenceId, prefix: Prefix, num_cached: int) -> Offer | None:
        store = self.store
        num_blocks = 0
        for key in prefix.keys:
            if not any((group, key) in store.content for group in range(4)):
                break
            num_blocks += 1
        if num_blocks <= num_cached:
            return None
        is_fetch = sequence_id % 2 == 0
        return Offer(num_blocks, store.now_ms + store.patience_ms, leaves_room=is_fetch)

    def start(self, sequence_id: SequenceId, prefix: Prefix, runs: tuple[HostRun, ...]) -> None:
        assert sequence_id not in self.store.landings
        self.store.landings[sequence_id] = Landing(runs)

    def decline(self, sequence_id: SequenceId) -> None:
        self.store.num_refused += 1

    def cancel(self, sequence_id: SequenceId) -> int:
        self.store.landings[sequence_id].is_cancelled = True
        return 0

    def poll(self) -> list[LandingEnd]:
        store = self.store
        ends: list[LandingEnd] = []
        for sequence_id, landing in list(store.landings.items()):
            is_bad = landing.is_cancelled or store.random.random() < 0.5
            if is_bad:  # the last bytes of something that is of no use
                for run in landing.runs:
                    for host_id in run.host_ids:
                        store.executor.memory.write_host(run.group, host_id, POISON)
            if store.random.random() < 0.7:
                continue
            del store.landings[sequence_id]
            has_landed = store.random.random() >= store.failure_rate and self._fill(landing)
            store.num_landed += has_landed
            ends.append(LandingEnd(sequence_id, has_landed))
        return ends

    def _fill(self, landing: Landing) -> bool:
        """Writes all blocks; False when something is missing."""
        for run in landing.runs:
            for host_id, key in zip(run.host_ids, run.keys, strict=True):
                content = self.store.content.get((run.group, key))
                if content is None:
                    return False
                self.store.executor.memory.write_host(run.group, host_id, content)
        return True


@dataclass(slots=True)
class Sink:
    """The way out."""

    store: StoreDouble

    def find(self, sequence_id: SequenceId, prefix: Prefix) -> ExportOrder | None:
        order = self.store.order
        if not order.is_firm:
            return order if self.store.random.random() < 0.7 else None
        return ExportOrder(len(prefix.keys), order.first, is_firm=True)

    def take(self, chunk: ExportedChunk) -> None:
        assert chunk.sequence_id not in self.store.ends
        self.store.leased.append(chunk)

    def end(self, sequence_id: SequenceId, *, is_whole: bool) -> None:
        self.store.ends[sequence_id] = is_whole

    def disown(self, void: Prefix) -> None:
        self.store.voids.append(void)

    def poll(self) -> list[ChunkId]:
        store = self.store
        given_back: list[ChunkId] = []
        for chunk in list(store.leased):
            if store.random.random() < 0.5:
                continue
            store.leased.remove(chunk)
            given_back.append(chunk.chunk_id)
            for run in chunk.runs:
                for host_id, key in zip(run.host_ids, run.keys, strict=True):
                    content = store.executor.memory.read_host(run.group, host_id)
                    store.content[run.group, key] = content
        return given_back
