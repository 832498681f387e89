"""A tier at work: a thread that keeps, a clock over what it brings, and counts.

Must not know other tiers. What finds its queue full is not kept: the engine never waits.
Read next: `tier`, `rates`, `tier_store` (joins several).
"""

import queue
import threading
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import structlog

from contracts.ids import RegionId
from gpu_pool.kv.tiers.leaving import LeavingBlock
from gpu_pool.kv.tiers.namespace import BlockName, TierNamespace
from gpu_pool.kv.tiers.rates import ReadClock
from gpu_pool.kv.tiers.shelves import Entry
from gpu_pool.kv.tiers.tier import Tier


class _Disowned(NamedTuple):
    """Blocks that are to be removed, those before it in the queue, too."""

    space: TierNamespace
    names: Sequence[BlockName]


_PROBE_AGE_S: Final = 10.0
"""A rate that is older is measured again when it stands against a fetch."""


@dataclass(frozen=True, slots=True)
class TierFigures:
    """What a tier came to; counts are of blocks, since the start."""

    label: str
    num_bytes: int
    """Held now."""
    is_off: bool
    """Nothing is kept, since a drive has refused and for all that is known still does, or while a
    store is away."""
    num_damaged: int
    num_kept: int
    num_dropped: int
    """Not kept because the tier was behind."""
    num_fetched: int
    num_fetched_bytes: int
    bytes_per_s: float
    """Rate of fetches; 0 until measured."""
    num_unread: int = 0
    """Reads that failed although the block may be as it was."""


class MeasuredTier:
    """One tier with its thread. `offer` and `fetch` may be called by any thread."""

    def __init__(
        self,
        label: str,
        tier: Tier,
        max_pending: int,
        monotonic_s: Callable[[], float],
        regions: Collection[RegionId] | None = None,
    ) -> None:
        """At most `max_pending` blocks wait to be kept; they lie in any of `regions`, or None: on
        this machine.
        """
        self.label = label
        self._regions = regions
        self._tier = tier
        self._clock = ReadClock(monotonic_s)
        self._num_kept = self._num_dropped = self._num_fetched = 0
        self._max_pending = max_pending
        self._pending: queue.SimpleQueue[LeavingBlock | _Disowned | None] = queue.SimpleQueue()
        self._void: Counter[Entry] = Counter()
        """How often blocks were disowned and have not been removed since."""
        self._void_lock = threading.Lock()
        self._is_leaving = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"kv-{label}", daemon=True)
        self._thread.start()

    @property
    def s_per_byte(self) -> float:
        """What a fetch takes; infinite until measured."""
        rate = self._clock.meter.bytes_per_s
        return 1 / rate if rate else float("inf")

    @property
    def is_stale(self) -> bool:
        """True when its rate should be measured before it is believed again."""
        return self._clock.is_older_than(_PROBE_AGE_S)

    def has(self, space: TierNamespace, name: BlockName) -> bool:
        """True when the block is here."""
        return self._is_open(space, name) and self._tier.has(space, name)

    def wants(self, space: TierNamespace, name: BlockName) -> bool:
        """True when the block is not here and could be kept."""
        books = self._tier.books
        may_be_here = self._may_keep(space) and (not books.is_off or books.may_try)
        return may_be_here and not self.has(space, name)

    def may_have(self, space: TierNamespace, name: BlockName) -> bool:
        """True when it is worth asking for the block."""
        return self._is_open(space, name) and self._tier.may_have(space, name)

    def offer(self, block: LeavingBlock) -> None:
        """Keeps a block some time soon, or lets it go at once."""
        if self._pending.qsize() < self._max_pending:
            self._pending.put(block)
        else:
            self._num_dropped += 1
            block.leave()

    def disown(self, space: TierNamespace, names: Sequence[BlockName]) -> None:
        """Brings no block of these names that is here or waits to be kept, and removes them some
        time soon; what is offered from here on is kept.
        """
        with self._void_lock:
            self._void.update(Entry(space.owner, name.text) for name in names)
            self._pending.put(_Disowned(space, names))

    def fetch(self, space: TierNamespace, name: BlockName, block: memoryview) -> bool:
        """Fills `block`; False when that is not to be had, and nothing of it may be used."""
        if not self._is_open(space, name):
            return False
        is_whole = self._clock.time(len(block), lambda: self._tier.fetch(space, name, block))
        self._num_fetched += is_whole
        return is_whole

    def keep(self, space: TierNamespace, name: BlockName, block: memoryview) -> None:
        """Keeps a block now; the first one is read back, so that there is a rate.

        The very first read does not count: over a network it is the one that connects.
        """
        if self._is_open(space, name) and self._tier.keep(space, name, block):
            self._num_kept += 1
            if self._num_kept == 1 and not self._clock.meter.bytes_per_s:
                self._tier.fetch(space, name, memoryview(bytearray(len(block))))
                self.probe(space, name, len(block))

    def probe(self, space: TierNamespace, name: BlockName, num_bytes: int) -> None:
        """Reads a block for the sake of the rate."""
        block = memoryview(bytearray(num_bytes))
        self._clock.time(num_bytes, lambda: self._tier.fetch(space, name, block))

    def describe(self) -> TierFigures:
        """Its figures."""
        books = self._tier.books
        return TierFigures(
            self.label,
            books.num_bytes,
            books.is_off,
            books.num_damaged,
            self._num_kept,
            self._num_dropped,
            self._num_fetched,
            self._clock.num_bytes,
            self._clock.meter.bytes_per_s,
            books.num_unread,
        )

    def close(self, wait_s: float) -> None:
        """Ends when what waits has been kept; after `wait_s` the rest of it is let go."""
        self._pending.put(None)
        self._thread.join(wait_s)
        self._is_leaving.set()
        self._tier.close()
        self._thread.join()

    def _may_keep(self, space: TierNamespace) -> bool:
        """False where the law does not let blocks be wherever this tier may put them."""
        return self._regions is None or space.may_be_in(self._regions)

    def _is_open(self, space: TierNamespace, name: BlockName) -> bool:
        """True for what the law lets be here, and was not disowned."""
        return self._may_keep(space) and not self._is_void(space, name)

    def _is_void(self, space: TierNamespace, name: BlockName) -> bool:
        """True for what was disowned and is still to be removed."""
        return bool(self._void) and Entry(space.owner, name.text) in self._void

    def _remove(self, disowned: _Disowned) -> None:
        """Removes blocks: what comes under their names from here on is right, unless they were
        disowned once more meanwhile.
        """
        space, names = disowned
        self._tier.remove(space, names)
        with self._void_lock:
            self._void -= Counter(Entry(space.owner, name.text) for name in names)

    def _run(self) -> None:
        """Keeps what is offered, and forgets what is disowned, until `close`."""
        while (entry := self._pending.get()) is not None:
            try:
                if self._is_leaving.is_set():
                    self._num_dropped += isinstance(entry, LeavingBlock)
                elif isinstance(entry, _Disowned):
                    self._remove(entry)
                else:
                    self.keep(entry.space, entry.name, entry.content)
            except Exception:
                structlog.get_logger().exception("a KV block was not kept", tier=self.label)
            finally:
                if isinstance(entry, LeavingBlock):
                    entry.leave()
