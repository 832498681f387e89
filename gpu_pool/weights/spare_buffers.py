"""Buffers that are used again once nobody looks into them any more.

Memory that was never touched costs more than a drive takes to fill it (measured: a quarter of the
raw rate into new memory). What a packed weight was read into is free as soon as it is packed.
Must not know files. Read next: `tensor_stream`, the caller.
"""

import mmap
import threading
import weakref
from typing import Final

from gpu_pool.large_pages import create_buffer

_LEAST_BYTES: Final = 1 << 20
"""Smaller ones are not worth keeping."""
_SLACK: Final = 8
"""A buffer serves for what is smaller by one part in so many: it may stay with it for good."""


class SpareBuffers:
    """Used buffers, at most so many bytes of them. Any thread may give one back."""

    def __init__(self, max_bytes: int) -> None:
        """None yet."""
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._spare: list[mmap.mmap] = []
        self._lock = threading.RLock()  # a finaliser may run wherever Python allocates

    def take(self, num_bytes: int) -> mmap.mmap:
        """A buffer of at least `num_bytes`, which holds anything."""
        with self._lock:
            for place, buffer in enumerate(self._spare):
                if num_bytes <= len(buffer) <= num_bytes + num_bytes // _SLACK:
                    self._num_bytes -= len(buffer)
                    return self._spare.pop(place)
        return create_buffer(num_bytes)

    def lend(self, buffer: mmap.mmap, first: int, end: int) -> memoryview:
        """A part of `buffer`, which comes back when the view is gone, and all that holds it."""
        view = memoryview(buffer)[first:end]
        if len(buffer) >= _LEAST_BYTES:
            weakref.finalize(view, self._give_back, buffer).atexit = False
        return view

    def close(self) -> None:
        """Keeps nothing from now on."""
        with self._lock:
            self._max_bytes = 0
            self._spare.clear()

    def _give_back(self, buffer: mmap.mmap) -> None:
        """Keeps a buffer for the next one who takes."""
        with self._lock:
            if self._num_bytes + len(buffer) <= self._max_bytes:
                self._spare.append(buffer)
                self._num_bytes += len(buffer)
