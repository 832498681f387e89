"""Which sequences have run out of time.

Owns the order of deadlines; must not know what happens to who missed one. Read next: `scheduler`.
"""

import heapq
from collections.abc import Iterator

from gpu_pool.engine.sequence import Sequence
from gpu_pool.plan import SequenceId


class Deadlines:
    """Deadlines of live sequences and of some that are over. Units: ms of `node_clock`."""

    def __init__(self) -> None:
        """None."""
        self._heap: list[tuple[int, SequenceId]] = []

    def add(self, sequence: Sequence) -> None:
        """Watches over a sequence; it need not be taken out when it ends."""
        heapq.heappush(self._heap, (sequence.deadline_ms, sequence.sequence_id))

    def pop_missed(self, now_ms: int) -> Iterator[SequenceId]:
        """The sequences whose deadline has passed, some of which may be over."""
        while self._heap and self._heap[0][0] <= now_ms:
            yield heapq.heappop(self._heap)[1]
