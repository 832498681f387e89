"""What the gateway takes from the machine: time, chance and memory.

Time and chance are passed in, so that tests decide both; memory is set up once per process. Must
not know what is timed, drawn or stored.
"""

import ctypes
import gc
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

_POOL_BYTES: Final = 4096
_GC_THRESHOLDS: Final = (20_000, 50, 100)
"""Hundreds of requests under way are no garbage; the defaults keep looking for some among them."""
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 64 * 1024 * 1024


class RandomPool:
    """Unpredictable bits, fetched from the system in larger pieces: a call there costs more."""

    __slots__ = ("_bytes", "_fetch", "_position")

    def __init__(self, fetch: Callable[[int], bytes]) -> None:
        """`fetch` gives that many unpredictable bytes."""
        self._fetch = fetch
        self._bytes = b""
        self._position = 0

    def draw(self, num_bits: int) -> int:
        """An integer of `num_bits` bits; no bit is ever given out twice."""
        num_bytes = (num_bits + 7) // 8
        start, end = self._position, self._position + num_bytes
        if end > len(self._bytes):
            self._bytes = self._fetch(max(_POOL_BYTES, num_bytes))
            start, end = 0, num_bytes
        self._position = end
        return int.from_bytes(self._bytes[start:end], "big") >> (8 * num_bytes - num_bits)


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the gateway takes time and random numbers from."""

    monotonic_s: Callable[[], float]
    """Seconds that never go back; for durations and deadlines."""
    unix_s: Callable[[], float]
    """Seconds since 1970."""
    random_bits: Callable[[int], int]
    """An unpredictable integer of so many bits: request ids, nonces, jitter."""


def create_sources() -> Sources:
    """The machine's clocks and its cryptographic random source."""
    return Sources(
        monotonic_s=time.monotonic,
        unix_s=time.time,
        random_bits=RandomPool(os.urandom).draw,
    )


def settle_memory() -> None:
    """Prepares the process's memory for serving; call it once everything is built.

    What exists now is left out of collections, which would otherwise walk every module again and
    again. And glibc keeps freed memory instead of giving it back after each long body, only to be
    handed the same pages anew: a fifth of such a request's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES // 2)
        libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
