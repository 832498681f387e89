"""A file that is read past the page cache, in whole blocks.

Weights are read once; through the cache they would push out what is read again, and each byte would
be copied once more. A file that is in the cache as a whole is taken from there: memory is faster
than a drive. Where a file system refuses direct reads, the cache is used and the log says so.
Must not know tensors. Read next: `tensor_stream`, the caller.
"""

import errno
import os
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import structlog

from gpu_pool.models.errors import CheckpointError

BLOCK_BYTES: Final = 4096
"""Offsets, lengths and addresses are multiples of this: enough for every drive there is."""
_DIRECT: Final = getattr(os, "O_DIRECT", 0)  # not every system has these
_IF_CACHED: Final = getattr(os, "RWF_NOWAIT", 0)
_NUM_PROBES: Final = 32
"""Blocks that are looked at, evenly spread: asking for every piece slows a drive down."""


class DirectFile:
    """An open file. Any number of threads may read it at once."""

    def __init__(self, path: Path, *, is_direct: bool = True) -> None:
        """Opens it. Raises: `CheckpointError`."""
        self._path = path
        self.is_direct = is_direct and bool(_DIRECT)
        """False where the page cache is used."""
        try:
            if self.is_direct and _is_cached(path):
                self.is_direct = False
            self._file = self._open()
            self._num_bytes = os.fstat(self._file).st_size
        except OSError as error:
            raise CheckpointError(f"{path}: {error.strerror}.") from error

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Closes it."""
        self.close()

    def close(self) -> None:
        """Closes it; nobody may be reading."""
        os.close(self._file)

    def read_into(self, view: memoryview, offset: int) -> None:
        """Fills `view` from `offset` on, or up to the end of the file, where a block may end.

        Both begin and end at whole blocks. Raises: `CheckpointError` when the file has been cut or
        the drive fails.
        """
        num_wanted = min(len(view), self._num_bytes - offset)
        num_done = 0
        while num_done < num_wanted:
            try:
                num_read = os.preadv(self._file, [view[num_done:]], offset + num_done)
            except OSError as error:
                if error.errno == errno.EINVAL and self.is_direct:  # opened, but not read
                    self._fall_back()
                    continue
                raise CheckpointError(f"{self._path}: {error.strerror}.") from error
            if num_read == 0 or (num_read % BLOCK_BYTES and num_done + num_read < num_wanted):
                raise CheckpointError(f"{self._path}: the file was cut while it was read.")
            num_done += num_read

    def _open(self) -> int:
        """A descriptor, of the kind that the file system allows."""
        flags = os.O_RDONLY | os.O_CLOEXEC
        if self.is_direct:
            try:
                return os.open(self._path, flags | _DIRECT)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                    raise
            self._note_fall_back()
        return os.open(self._path, flags)

    def _fall_back(self) -> None:
        """Goes on through the page cache, under the same descriptor."""
        replacement = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        os.dup2(replacement, self._file, inheritable=False)
        os.close(replacement)
        self._note_fall_back()

    def _note_fall_back(self) -> None:
        """Says so, once per file."""
        if self.is_direct:
            self.is_direct = False
            structlog.get_logger().info(
                "weights are read through the page cache: the file system refuses direct reads",
                path=str(self._path),
            )


def _is_cached(path: Path) -> bool:
    """True when the page cache seems to have the whole file. Nothing is read from the drive."""
    if not _IF_CACHED:
        return False
    probe = bytearray(BLOCK_BYTES)
    with path.open("rb", buffering=0) as file:
        num_blocks = os.fstat(file.fileno()).st_size // BLOCK_BYTES
        places = {num_blocks * number // _NUM_PROBES for number in range(_NUM_PROBES)}
        try:
            return all(
                os.preadv(file.fileno(), [probe], place * BLOCK_BYTES, _IF_CACHED) > 0
                for place in sorted(places, reverse=True)
            )
        except OSError:  # it is not there, or the file system cannot tell
            return False
