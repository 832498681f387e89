"""Reads from the host that go on only when they are let through, or never end well."""

import os
import threading
from collections.abc import Sequence


class SlowCopies:
    """Stands in for `os.preadv`. The bytes that do come are the right ones."""

    def __init__(self, num_broken: int = -1, broken_read: int = 0) -> None:
        """The read of this number, from 0, returns `broken_read` instead of bytes."""
        self.num_begun = 0
        self._num_broken = num_broken
        self._broken_read = broken_read
        self._lock = threading.Lock()
        self._passes = threading.Semaphore(0)
        self._is_open = threading.Event()

    def let_through(self, count: int) -> None:
        """So many more reads end."""
        self._passes.release(count)

    def open_all(self) -> None:
        """From now on reads end at once."""
        self._is_open.set()
        self._passes.release(1000)

    def read(self, file: int, views: Sequence[memoryview], offset: int) -> int:
        with self._lock:
            number = self.num_begun
            self.num_begun += 1
        if not self._is_open.is_set():
            assert self._passes.acquire(timeout=60), "nobody lets this read through"
        if number == self._num_broken:
            return self._broken_read
        return os.preadv(file, views, offset)
