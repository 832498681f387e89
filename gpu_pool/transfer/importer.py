"""Blocks from a prefill node, as a source of the core.

Owns which sequences wait for another node and what the gateway is told of them; must not know how
bytes travel (`puller`). Used by the core's thread. Read next: `gpu_pool.kv.landing`, `exchange`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from contracts.kv_transfer import (
    KV_LATE,
    MAX_STRETCH,
    KvExported,
    KvGaveUp,
    KvLanded,
    KvReserved,
    TransferEvent,
)
from gpu_pool.engine.messages import KvArrival
from gpu_pool.kv.host_run import HostRun, Prefix
from gpu_pool.kv.landing import LandingEnd, Offer
from gpu_pool.plan import KvGroup, KvGroupKind, SequenceId
from gpu_pool.transfer.puller import Puller

_MAX_EARLY: Final = 256
"""Exports of one sequence that are kept until it has its host blocks."""
_LOCAL: Final = (KvGroupKind.SLIDING_WINDOW, KvGroupKind.CHUNKED)


@dataclass(slots=True)
class _Wait:
    """How long a sequence waits. Units: milliseconds of `node_clock`."""

    began: int
    deadline: int
    came: int = 0
    """When the other node last said that it had blocks; 0: never."""

    def extend(self) -> int:
        """As long again from the last news on: what keeps coming is not paid for twice."""
        span = self.deadline - self.began
        return max(self.deadline, min(self.came + span, self.began + MAX_STRETCH * span))


class Importer:
    """A `KvSource`."""

    def __init__(
        self,
        puller: Puller,
        groups: Sequence[KvGroup],
        clock_ms: Callable[[], int],
        tell: Callable[[SequenceId, TransferEvent], None],
    ) -> None:
        """`tell` brings an event to the gateway."""
        self._puller = puller
        self._local = {place for place, group in enumerate(groups) if group.kind in _LOCAL}
        self._clock_ms = clock_ms
        self._tell = tell
        self._waits: dict[SequenceId, _Wait] = {}
        self._expected: set[SequenceId] = set()
        self._early: dict[SequenceId, list[KvExported]] = {}
        self._live: set[SequenceId] = set()

    def expect(self, sequence_id: SequenceId, arrival: KvArrival) -> None:
        """The next sequence of this id waits for another node."""
        self._expected.add(sequence_id)
        self._waits[sequence_id] = _Wait(self._clock_ms(), arrival.deadline_ms)
        self._early[sequence_id] = []

    def take_export(self, sequence_id: SequenceId, exported: KvExported) -> None:
        """Another node has blocks of a sequence."""
        if sequence_id in self._waits:
            self._waits[sequence_id].came = self._clock_ms()
        if sequence_id in self._live:
            self._puller.offer(sequence_id, exported)
        elif sequence_id in self._expected and len(self._early[sequence_id]) < _MAX_EARLY:
            self._early[sequence_id].append(exported)

    def stop(self, sequence_id: SequenceId) -> None:
        """Nothing comes any more."""
        if sequence_id in self._live:
            self._puller.give_up(sequence_id, "stopped")

    # -- as a source -----------------------------------------------------------------------------

    def find(self, sequence_id: SequenceId, prefix: Prefix, num_cached: int) -> Offer | None:
        """All full blocks of a sequence that is expected, unless its time is over already."""
        if sequence_id not in self._expected:
            return None
        wait = self._waits[sequence_id]
        if wait.deadline <= self._clock_ms():
            return None
        return Offer(len(prefix.keys), wait.deadline, extend=wait.extend)

    def start(self, sequence_id: SequenceId, prefix: Prefix, runs: tuple[HostRun, ...]) -> None:
        """Waits for the other node's exports."""
        self._expected.remove(sequence_id)
        self._live.add(sequence_id)
        firsts = [run.first for run in runs if run.group not in self._local]
        num_blocks = len(prefix.keys)
        self._tell(sequence_id, KvReserved(min(firsts, default=num_blocks), num_blocks))
        self._puller.land(sequence_id, prefix, runs)
        for exported in self._early.pop(sequence_id):
            self._puller.offer(sequence_id, exported)

    def decline(self, sequence_id: SequenceId) -> None:
        """It is computed here."""
        if sequence_id in self._expected:
            self._expected.remove(sequence_id)
            del self._early[sequence_id], self._waits[sequence_id]
            self._tell(sequence_id, KvGaveUp("declined"))

    def cancel(self, sequence_id: SequenceId) -> int:
        """It is computed here, or over."""
        self._puller.give_up(sequence_id, KV_LATE)
        return 0

    def poll(self) -> list[LandingEnd]:
        """What has ended in the puller's thread."""
        ends: list[LandingEnd] = []
        while not self._puller.ends.empty():
            end = self._puller.ends.get()
            self._live.discard(end.sequence_id)
            del self._waits[end.sequence_id]
            if end.has_landed:
                event: TransferEvent = KvLanded(end.num_bytes, end.seconds)
            else:
                event = KvGaveUp(end.reason)
            self._tell(end.sequence_id, event)
            ends.append(LandingEnd(end.sequence_id, end.has_landed))
        return ends
