"""Memory of this process as the system sees it: pages that are given back while addresses stay.

Owns the system calls; must not know tensors. Read next: `gpu_pool.worker.worker`.
"""

import ctypes
import mmap
import os
from typing import Final

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def discard_pages(address: int, num_bytes: int) -> int:
    """Gives the whole pages of a range of private memory back; returns how many bytes that was.

    They read as zeros, and take memory again, from the next access on. Raises: `OSError`.
    """
    start = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (address + num_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if end <= start:
        return 0
    if _libc.madvise(start, end - start, mmap.MADV_DONTNEED):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return end - start
