"""Which sequences have run out of time.

Owns the order of deadlines; must not know what happens to who missed one. Read next: `scheduler`.
"""

import heapq
from collections.abc import Iterator

from gpu_pool.engine.sequence import Sequence
from gpu_pool.plan import SequenceId


class Deadlines:
    """Deadlines of live sequences. Units: ms of `node_clock`."""

    def __init__(self) -> None:
        """None."""
        self._heap: list[tuple[int, SequenceId]] = []
        """Those that are watched over, and at most one more of others than there are of them."""
        self._watched: dict[SequenceId, int] = {}

    @property
    def num_kept(self) -> int:
        """Deadlines that take memory."""
        return len(self._heap)

    def add(self, sequence: Sequence) -> None:
        """Watches over a sequence."""
        self._watched[sequence.sequence_id] = sequence.deadline_ms
        heapq.heappush(self._heap, (sequence.deadline_ms, sequence.sequence_id))

    def remove(self, sequence: Sequence) -> None:
        """A sequence is over; what is kept of such ones goes when it is more than half of all."""
        self._watched.pop(sequence.sequence_id, None)
        if len(self._heap) > 2 * len(self._watched) + 1:
            self._heap = [(deadline_ms, one) for one, deadline_ms in self._watched.items()]
            heapq.heapify(self._heap)

    def clear(self) -> None:
        """All are over."""
        self._heap.clear()
        self._watched.clear()

    def pop_missed(self, now_ms: int) -> Iterator[SequenceId]:
        """The sequences whose deadline has passed, each once."""
        while self._heap and self._heap[0][0] <= now_ms:
            deadline_ms, sequence_id = heapq.heappop(self._heap)
            if self._watched.get(sequence_id) == deadline_ms:
                del self._watched[sequence_id]
                yield sequence_id
