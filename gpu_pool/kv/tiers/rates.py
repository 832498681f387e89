"""How fast a tier brings blocks, measured on what it brings.

Owns a running figure per tier; must not know tiers. Reads run side by side, so it is not one read
that is timed but the whole while in which there is any. Read next: `fetch_choice`, which uses it.
"""

import math
import threading
from collections.abc import Callable
from typing import Final

_MEMORY_BYTES: Final = 8 << 20
_MEMORY_S: Final = 5.0
"""What was read so many bytes or seconds ago counts for a third."""
_MANY_READS: Final = 64
"""After so many a figure is taken although others go on, of which it counts the time alone."""
_MUCH_SLOWER: Final = 0.5
"""The part of the known rate below which a drive has turned slow."""
_TELLING_READS: Final = 4
"""Fewer may have been held up by something else."""


class RateMeter:
    """A running figure: bytes over seconds, of which the old ones fade.

    Both are summed, so that one block that took long weighs as much as a block.
    """

    def __init__(self) -> None:
        """Nothing measured."""
        self._num_bytes = 0.0
        self._seconds = 0.0
        self._noted_s = 0.0

    @property
    def bytes_per_s(self) -> float:
        """0 until measured."""
        return self._num_bytes / self._seconds if self._seconds else 0.0

    def note(
        self, num_bytes: int, seconds: float, now_s: float, *, is_telling: bool = False
    ) -> None:
        """So many bytes came in so much time, until `now_s`. Where that is much slower than what is
        known and is no single read (`is_telling`), nothing older counts: a fetch that is given up
        early has few bytes, beside which those of a quick drive would count for many fetches more.
        """
        if num_bytes <= 0 or seconds <= 0:
            return
        age = (now_s - self._noted_s) / _MEMORY_S + num_bytes / _MEMORY_BYTES
        is_another = is_telling and num_bytes < _MUCH_SLOWER * self.bytes_per_s * seconds
        kept = 0.0 if is_another else math.exp(-max(0.0, age))
        part = min(1.0, _MEMORY_BYTES / num_bytes)  # or a long read would count for ever
        self._num_bytes = self._num_bytes * kept + num_bytes * part
        self._seconds = self._seconds * kept + seconds * part
        self._noted_s = now_s


class ReadClock:
    """Times the reads of one tier. Any thread may read."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        """Nothing measured."""
        self.meter = RateMeter()
        self.num_bytes = 0
        """Read since the start."""
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._num_active = 0
        self._num_new = 0
        self._num_new_bytes = 0
        self._began_s = 0.0
        self._measured_s = float("-inf")

    def is_older_than(self, seconds: float) -> bool:
        """True when nothing has been measured for so long."""
        return self._monotonic_s() - self._measured_s > seconds

    def time(self, num_bytes: int, read: Callable[[], bool]) -> bool:
        """Does a read of so many bytes; one that brings nothing has taken its time, too.

        What is not there is told sooner than it would come: reads of which none brings anything
        say nothing of the rate.
        """
        with self._lock:
            if self._num_active == 0:
                self._began_s, self._num_new, self._num_new_bytes = self._monotonic_s(), 0, 0
            self._num_active += 1
        is_whole = False
        try:
            is_whole = read()
        finally:
            with self._lock:
                self._num_active -= 1
                self._note(num_bytes if is_whole else 0)
        return is_whole

    def _note(self, num_bytes: int) -> None:
        """Takes a figure when the last read is over, or after many."""
        now_s = self._monotonic_s()
        self.num_bytes += num_bytes
        self._num_new += 1
        self._num_new_bytes += num_bytes
        if self._num_active == 0 or self._num_new >= _MANY_READS:
            self.meter.note(
                self._num_new_bytes,
                now_s - self._began_s,
                now_s,
                is_telling=self._num_new >= _TELLING_READS,
            )
            if self._num_new_bytes:
                self._measured_s = now_s
            self._began_s, self._num_new, self._num_new_bytes = now_s, 0, 0
