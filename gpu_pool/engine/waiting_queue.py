"""Sequences that wait for blocks and a place in the batch.

Owns their order: first come, first served within a priority. This is the place for the fair order
among accounts: `peek` would then choose the account with the least virtual time instead of the
first sequence. Must not know blocks. Read next: `scheduler`.
"""

from collections import OrderedDict

from gpu_pool.engine.sequence import Sequence
from gpu_pool.plan import SequenceId


class WaitingQueue:
    """One line per priority; every call is constant in the number of sequences."""

    def __init__(self) -> None:
        """Nobody waits."""
        self._lines: dict[int, OrderedDict[SequenceId, Sequence]] = {}
        self._num_waiting = 0

    def __len__(self) -> int:
        """Number of sequences."""
        return self._num_waiting

    def push(self, sequence: Sequence) -> None:
        """Adds an arrival at the end of its line."""
        self._lines.setdefault(sequence.priority, OrderedDict())[sequence.sequence_id] = sequence
        self._num_waiting += 1

    def push_front(self, sequence: Sequence) -> None:
        """Puts a preempted sequence back where it came from: it arrived before all that wait."""
        self.push(sequence)
        self._lines[sequence.priority].move_to_end(sequence.sequence_id, last=False)

    def peek(self) -> Sequence | None:
        """The sequence to start next, which stays in the queue."""
        if not self._lines:
            return None
        return next(iter(self._lines[max(self._lines)].values()))

    def remove(self, sequence: Sequence) -> None:
        """Takes out `sequence`, wherever it stands."""
        line = self._lines[sequence.priority]
        del line[sequence.sequence_id]
        if not line:
            del self._lines[sequence.priority]
        self._num_waiting -= 1
