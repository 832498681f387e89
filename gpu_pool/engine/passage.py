"""What comes and leaves of the KV of one core's sequences, past its plans.

Owns whom a sequence is offered to, and when; must not know results or messages.
Read next: `gpu_pool.kv.landing` (in), `gpu_pool.kv.export` (out), `books` and `scheduler` (the
callers).
"""

from collections.abc import Callable
from collections.abc import Sequence as Series
from dataclasses import dataclass, field
from typing import Final

from contracts.errors import PoolSaturated
from gpu_pool.engine.exchange import Exchange
from gpu_pool.engine.messages import KvTiers
from gpu_pool.engine.sequence import Sequence
from gpu_pool.engine.speed_meter import SpeedMeter
from gpu_pool.kv.export import Exports, KvSink
from gpu_pool.kv.kv_memory import KvMemory
from gpu_pool.kv.landing import KvSource, Landings
from gpu_pool.plan import SequenceId


@dataclass(frozen=True, slots=True)
class Carriers:
    """What brings KV to a core and takes it along."""

    sources: tuple[KvSource, ...] = ()
    sinks: tuple[KvSink, ...] = ()
    speed: SpeedMeter = field(default_factory=SpeedMeter)
    """The core's own, for sources that compare what they bring with what computing takes."""
    describe: Callable[[], KvTiers] = KvTiers
    """What the server is told of them."""
    exchange: Exchange | None = None
    """The one with other nodes, whose source and sink come first."""

    @property
    def all_sources(self) -> tuple[KvSource, ...]:
        """In the order in which they are asked."""
        return self.sources if self.exchange is None else (self.exchange.source, *self.sources)

    @property
    def all_sinks(self) -> tuple[KvSink, ...]:
        """In the order in which they are asked."""
        return self.sinks if self.exchange is None else (self.exchange.sink, *self.sinks)


class Passage:
    """All landings and exports of one core."""

    def __init__(self, kv: KvMemory, block_size: int, carriers: Carriers) -> None:
        """Units: `block_size` in tokens."""
        self._kv = kv
        self._has_carriers = bool(carriers.all_sources or carriers.all_sinks)
        self.speed: Final = carriers.speed
        self.landings: Final = Landings(kv.groups, block_size, carriers.all_sources)
        self.exports: Final = Exports(kv.groups, block_size, carriers.all_sinks)

    def open(self, sequence: Sequence) -> bool:
        """Finds out who brings and who takes the KV of a new sequence; True while it has to wait.

        Raises: `PoolSaturated` when there is no room for what has to leave.
        """
        if not self._has_carriers:
            return False
        sequence_id, table = sequence.sequence_id, sequence.table
        if table.is_private:
            self.decline(sequence_id)
            return False
        self.exports.poll()  # what is not needed any more makes room
        prefix = self._kv.name_prefix(table, sequence.reusable_tokens)
        if not self.exports.open(sequence_id, prefix):
            self.landings.decline(sequence_id)
            raise PoolSaturated("The node's memory for KV that is to move is full.")
        num_cached = self._kv.find(table, sequence.reusable_tokens).num_blocks
        latest = sequence.deadline_ms
        return self.landings.open(sequence_id, table, prefix, num_cached, latest)

    def decline(self, sequence_id: SequenceId) -> None:
        """Nothing comes or leaves for a sequence."""
        self.landings.decline(sequence_id)
        self.exports.decline(sequence_id)

    def poll(self, now_ms: int) -> Series[SequenceId]:
        """The sequences that wait no more: their KV has come, or will not."""
        self.exports.poll()
        return self.landings.poll(now_ms)

    def disown(self, sequence: Sequence) -> None:
        """What a sequence has computed, or was given, is wrong: nobody gets it from here again."""
        void = self._kv.disown(sequence.table)
        self.exports.disown(sequence.sequence_id, void)

    def leave(self, sequence: Sequence) -> None:
        """A sequence is over."""
        self.exports.close(sequence.sequence_id)
        self.landings.give_up(sequence.sequence_id, sequence.table)

    def count_held(self, place: int) -> int:
        """Host blocks of one group that come, leave or are in quarantine; for checks."""
        return self.landings.count_held(place) + self.exports.count_held(place)
