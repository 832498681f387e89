"""The tiers of one model together, fastest first: what is kept where, and the way back.

Owns the threads that fetch. Nothing here makes the engine wait. Blocks that come from a slower tier
are kept in the faster ones on their way. Must not know sequences or plans.
Read next: `measured_tier`, `fetching`, `tier_source` and `tier_sink` (the callers).
"""

import functools
import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from gpu_pool.kv.tiers.fetch_choice import Backlog
from gpu_pool.kv.tiers.fetch_turns import FetchTurns
from gpu_pool.kv.tiers.fetching import Fetch
from gpu_pool.kv.tiers.leaving import LeavingBlock
from gpu_pool.kv.tiers.measured_tier import MeasuredTier, TierFigures
from gpu_pool.kv.tiers.namespace import BlockName, TierNamespace

_NUM_READERS: Final = 4
CLOSE_S: Final = 1.0
"""For all tiers to keep what waits: a node kills a core that takes long to end."""


class WantedBlock(NamedTuple):
    """A block that a prefix needs, and its size."""

    name: BlockName
    num_bytes: int


Row = Sequence[WantedBlock]
"""The blocks of all groups at one place of a prefix."""


class TierStore:
    """Used by the engine's own thread."""

    def __init__(self, tiers: Sequence[MeasuredTier], num_readers: int = _NUM_READERS) -> None:
        """Takes the tiers, the fastest first; `num_readers` places are read at a time."""
        self._tiers = tuple(tiers)
        self._turns = FetchTurns(num_readers)
        self._is_probing = False
        self._num_disowned = 0
        """How often blocks have been disowned."""
        self.num_refused = 0
        """Blocks that were there and would have taken longer than computing."""

    def wants(self, space: TierNamespace, name: BlockName) -> bool:
        """True when a tier has not got the block, and could keep it."""
        return any(tier.wants(space, name) for tier in self._tiers)

    def offer(
        self,
        space: TierNamespace,
        name: BlockName,
        content: memoryview,
        let_go: Callable[[], None],
    ) -> None:
        """Lets tiers keep a block; `let_go` is called, by any thread, when all are done."""
        takers = [tier for tier in self._tiers if tier.wants(space, name)]
        if not takers:
            let_go()
        else:
            block = LeavingBlock(space, name, content, let_go, len(takers))
            for tier in takers:
                tier.offer(block)

    def disown(self, space: TierNamespace, names: Sequence[BlockName]) -> None:
        """Has tiers forget blocks that are not what their names say."""
        self._num_disowned += 1
        for tier in self._tiers if names else ():
            tier.disown(space, names)

    def measure(
        self, space: TierNamespace, rows: Iterable[Row], *, is_sure: bool = False
    ) -> list[float]:
        """What the leading places of a prefix would take, in seconds each, by the tiers' rates.

        Ends before the first place that is not there, or, where `is_sure`, of which nobody knows
        that it is; infinite where nothing has been measured.
        """
        sizes: list[float] = []
        for row in rows:
            seconds = 0.0
            for block in row:
                tier = self._find(space, block.name)
                if tier is None or (is_sure and not tier.has(space, block.name)):
                    return sizes
                seconds += block.num_bytes * tier.s_per_byte
            sizes.append(seconds)
        return sizes

    def find_backlog(self, space: TierNamespace) -> Backlog:
        """What is being fetched already, as an account sees it, by the slowest rate known."""
        known = (tier.s_per_byte for tier in self._tiers if tier.s_per_byte < math.inf)
        return self._turns.find_backlog(space.owner).in_seconds(max(known, default=math.inf))

    def note_refusal(self, space: TierNamespace, rows: Sequence[Row]) -> None:
        """Counts blocks that are not worth fetching; what the rates say of them may be old."""
        blocks = (block for row in rows for block in row)
        self.num_refused += sum(self._has(space, block.name) for block in blocks)
        for block in rows[0]:
            tier = self._find(space, block.name)
            if tier is not None and tier.is_stale and not self._is_probing:
                self._is_probing = True
                self._turns.add(space.owner, functools.partial(self._probe, tier, space, block))

    def fetch(
        self,
        space: TierNamespace,
        rows: Sequence[Row],
        targets: Sequence[Sequence[memoryview]],
        is_late: Callable[[int], bool],
        note_over: Callable[[], None],
    ) -> Fetch:
        """Begins to fill `targets`, which are nobody else's until the fetch is over.

        `is_late` and `note_over` as `Fetch` has them.
        """

        def fetch_row(place: int) -> bool:
            return all(
                self._fetch_block(space, block.name, target)
                for block, target in zip(rows[place], targets[place], strict=True)
            )

        fetch = Fetch(len(rows), fetch_row, is_late, note_over)
        sizes = [sum(block.num_bytes for block in row) for row in rows]
        for place, num_bytes in enumerate(sizes):
            self._turns.add(space.owner, functools.partial(fetch.read, place), num_bytes)
        return fetch

    def describe(self) -> tuple[TierFigures, ...]:
        """What each tier came to."""
        return tuple(tier.describe() for tier in self._tiers)

    def close(self) -> None:
        """Keeps what waits to be kept, as far as there is time for it, then ends all threads."""
        self._turns.stop()
        until_s = time.monotonic() + CLOSE_S
        for tier in self._tiers:
            tier.close(max(0.0, until_s - time.monotonic()))
        self._turns.join()

    def _has(self, space: TierNamespace, name: BlockName) -> bool:
        """True when some tier has the block."""
        return any(tier.has(space, name) for tier in self._tiers)

    def _find(self, space: TierNamespace, name: BlockName) -> MeasuredTier | None:
        """The fastest tier that has a block, or may have it if none has."""
        return next((tier for tier in self._tiers if tier.may_have(space, name)), None)

    def _fetch_block(self, space: TierNamespace, name: BlockName, target: memoryview) -> bool:
        """Fills `target` from the fastest tier that has the block, those above it learn it: not for
        good where any was disowned meanwhile, for this one may have been, and be removed by now.
        """
        num_disowned = self._num_disowned
        for place, tier in enumerate(self._tiers):
            if tier.may_have(space, name) and tier.fetch(space, name, target):
                for faster in self._tiers[:place]:
                    faster.keep(space, name, target)
                    if self._num_disowned != num_disowned:
                        faster.disown(space, [name])
                return True
        return False

    def _probe(self, tier: MeasuredTier, space: TierNamespace, block: WantedBlock) -> None:
        """Measures a tier; there is only one probe at a time."""
        try:
            tier.probe(space, block.name, block.num_bytes)
        finally:
            self._is_probing = False
