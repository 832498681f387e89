"""A prefix on its way back from the tiers: places in order, read side by side.

Owns one fetch; must not know whether it was worth it. What is being read is written to memory that
the caller has reserved, and nobody may use that for anything else before the fetch is over: a read
that was given up still goes on for a while.
Read next: `tier_store` (the caller).
"""

import threading
from collections.abc import Callable

FetchRow = Callable[[int], bool]
"""Brings the blocks of all groups at one place; False: they are not to be had."""


class Fetch:
    """A fetch of `num_rows` places, by the threads of a pool."""

    def __init__(
        self,
        num_rows: int,
        fetch_row: FetchRow,
        is_late: Callable[[int], bool],
        note_over: Callable[[], None],
    ) -> None:
        """Nothing has been read.

        `is_late` is asked before each read with the number of leading places that have landed;
        `note_over` is called once, by the thread whose read was the last.
        """
        self._num_rows = num_rows
        self._fetch_row = fetch_row
        self._is_late = is_late
        self._note_over = note_over
        self._has_landed = [False] * num_rows
        self._num_open = num_rows
        self._is_given_up = False
        self._lock = threading.Lock()
        self.num_landed = 0
        """Leading places that have been read as a whole."""

    @property
    def is_over(self) -> bool:
        """True when no thread reads for this any more."""
        return self._num_open == 0

    def give_up(self) -> None:
        """Begins no further read."""
        self._is_given_up = True

    def read(self, row: int) -> None:
        """Reads one place; called once for each, by any thread."""
        has_landed = False
        try:
            if not self._is_given_up and not self._is_late(self.num_landed):
                has_landed = self._fetch_row(row)
        finally:
            with self._lock:
                self._has_landed[row] = has_landed
                self._is_given_up |= not has_landed  # what comes behind a gap is of no use
                while self.num_landed < self._num_rows and self._has_landed[self.num_landed]:
                    self.num_landed += 1
                self._num_open -= 1
                is_last = self._num_open == 0
            if is_last:
                self._note_over()
