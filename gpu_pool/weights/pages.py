"""Memory of this process as the system sees it: pages that are given back while addresses stay.

Owns the system calls; must not know tensors. Read next: `cpu_memory`, the caller.
"""

import ctypes
import errno
import mmap
import os
from dataclasses import dataclass
from typing import Final

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
_POPULATE_READ: Final = 22
"""MADV_POPULATE_READ; systems before Linux 5.14 do not know it. Source: madvise(2)."""
_POPULATE_WRITE: Final = 23
"""MADV_POPULATE_WRITE, as new."""
_PUNCH_HOLE: Final = 3
"""FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE. Source: fallocate(2)."""


@dataclass(frozen=True, slots=True)
class Span:
    """A range of addresses."""

    address: int
    num_bytes: int

    def view(self) -> memoryview:
        """Its content, for as long as the memory lives."""
        return memoryview((ctypes.c_char * self.num_bytes).from_address(self.address)).cast("B")

    def holds(self, other: "Span") -> bool:
        """True when all of `other` lies inside."""
        end = other.address + other.num_bytes
        return self.address <= other.address and end <= self.address + self.num_bytes

    def trim(self) -> "Span":
        """The whole pages inside; empty where there is none."""
        start = -(-self.address // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (self.address + self.num_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
        return Span(start, max(0, end - start))


def discard_pages(span: Span) -> int:
    """Gives the whole pages of a range of private memory back; returns how many bytes that was.

    They read as zeros, and take memory again, from the next access on. Raises: `OSError`.
    """
    pages = span.trim()
    if pages.num_bytes:
        _check(_libc.madvise(pages.address, pages.num_bytes, mmap.MADV_DONTNEED))
    return pages.num_bytes


def bring_pages(span: Span) -> None:
    """Has the pages of a range that a file fills here before anybody touches them, where the
    system can be asked to. Raises: `OSError` when the drive fails.
    """
    pages = span.trim()
    if pages.num_bytes:
        _check(_libc.madvise(pages.address, pages.num_bytes, _POPULATE_READ), errno.EINVAL)


def populate_pages(span: Span) -> bool:
    """Has the pages of a range of private memory here before anybody writes them; what they hold
    stays. False where the system cannot be asked to. Where a control group has no memory left, the
    system kills a process instead: see `memory_room`.
    """
    pages = span.trim()
    return not pages.num_bytes or not _libc.madvise(pages.address, pages.num_bytes, _POPULATE_WRITE)


def punch_hole(file: int, offset: int, num_bytes: int) -> None:
    """Gives a range of a file in memory back. Raises: `OSError`."""
    _check(_libc.fallocate(file, _PUNCH_HOLE, offset, num_bytes))


def _check(result: int, borne: int | None = None) -> None:
    """Raises: `OSError` for what a call of the C library says went wrong, unless it is `borne`."""
    if result:
        number = ctypes.get_errno()
        if number != borne:
            raise OSError(number, os.strerror(number))
