"""A sealed block's way to a drive and back: past the page cache, whole or not at all.

A block is written under another name and gets its own when it is complete; a process that is killed
leaves nothing that can be read. Nothing is flushed: what a power cut leaves is recognised by its
seal. Where a file system refuses direct access, the page cache is used.
Must not know what is in a block. Read next: `file_tier`, the caller.
"""

import errno
import mmap
import os
from pathlib import Path
from typing import Final

PAGE_BYTES: Final = 4096
"""Offsets, lengths and addresses of direct access are multiples of this."""
PART_SUFFIX: Final = ".part"
_DIRECT: Final = getattr(os, "O_DIRECT", 0)  # not every system has it
_REFUSALS: Final = (errno.EINVAL, errno.EOPNOTSUPP)


def round_up(num_bytes: int) -> int:
    """What `num_bytes` take on the drive."""
    return -(-num_bytes // PAGE_BYTES) * PAGE_BYTES


def create_buffer(num_bytes: int) -> mmap.mmap:
    """Memory for whole pages, zeros, that direct access can use."""
    return mmap.mmap(-1, max(PAGE_BYTES, round_up(num_bytes)))


def write_file(path: Path, pages: memoryview) -> None:
    """Makes `path` a file of whole pages. Raises: `OSError`; nothing of it remains then."""
    part = path.with_suffix(PART_SUFFIX)
    try:
        file = _open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            _write(file, pages)
        finally:
            os.close(file)
        part.rename(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def read_file(path: Path, pages: memoryview) -> int:
    """Fills `pages` from the start of a file; returns the bytes there were. Raises: `OSError`."""
    file = _open(path, os.O_RDONLY)
    try:
        num_done = 0
        while num_done < len(pages):
            num_read = os.preadv(file, [pages[num_done:]], num_done)
            num_done += num_read
            if num_read == 0 or num_read % PAGE_BYTES:
                break
        return num_done
    finally:
        os.close(file)


def _open(path: Path, flags: int) -> int:
    """A descriptor past the page cache, where the file system has that."""
    flags |= os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags | _DIRECT, 0o600)
    except OSError as error:
        if error.errno not in _REFUSALS:
            raise
    return os.open(path, flags, 0o600)


def _write(file: int, pages: memoryview) -> None:
    """Writes all of `pages`."""
    num_done = 0
    while num_done < len(pages):
        num_done += os.write(file, pages[num_done:])
