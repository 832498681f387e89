"""Writes a packed copy beside the model that is computed with, by a thread that others go before:
in lulls, and in the end beside steps.

The file has another name until it is whole, and whoever writes holds a lock on it, so that what a
killed process has left is found and written over. Must not know families.
Read next: `packed_file`, `gpu_pool.worker.packed_loading` (the caller).
"""

import fcntl
import os
import shutil
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import structlog

from gpu_pool.lull import Lull
from gpu_pool.models.errors import CheckpointError
from gpu_pool.weights.packed_copy import PackedCopy
from gpu_pool.weights.packed_file import (
    COPY_FILE,
    UNFINISHED_FILE,
    Contents,
    is_own,
    write_contents,
    write_pieces,
)
from gpu_pool.weights.packed_parameters import PackedRecord
from gpu_pool.weights.pages import Span

_NICENESS: Final = 10
"""Enough to stay out of the way of steps, too little to keep Python's lock from them for long."""
_PATIENCE_S: Final = 1.0
"""How long the end of a process waits for the thread."""
_FREE_SHARE: Final = 20
"""One part in so many of the drive stays free."""
_CONTENTS_SHARE: Final = 500
_CONTENTS_BYTES: Final = 1 << 20
"""What a file has beside the weights: at most so much and one part in so many of them."""


class WeightCopy(Protocol):
    """The packed copy of a loaded model's weights."""

    @property
    def span(self) -> Span:
        """The memory that is the copy's own, mapped."""
        ...

    @property
    def is_there(self) -> bool:
        """True where a start would find it."""
        ...

    def begin(self, lull: Lull) -> None:
        """From now on it may be written, whenever there is a `lull`."""
        ...

    def wait(self) -> None:
        """Returns when it is there, or will not be: it is written at once. Behind `begin`."""
        ...

    def stop(self) -> None:
        """Returns when the model's memory is no longer read for it."""
        ...

    def close(self) -> None:
        """The same, at the end of the process: nothing half written is left."""
        ...


@dataclass(frozen=True, slots=True)
class MappedCopy:
    """A copy that is computed with, or none."""

    span: Span

    @property
    def is_there(self) -> bool:
        """True where there is one."""
        return self.span.num_bytes > 0

    def begin(self, lull: Lull) -> None:
        """It is there."""

    def wait(self) -> None:
        """It is there."""

    def stop(self) -> None:
        """Nothing is written."""

    def close(self) -> None:
        """Nothing is left."""


NO_COPY: Final = MappedCopy(Span(0, 0))


class StoppedError(Exception):
    """The memory is wanted for something else."""


class PackedWriting:
    """A copy that is to be written. The model's memory is read until `stop`, at most."""

    def __init__(
        self, copy: PackedCopy, record: PackedRecord, revision: str, room_bytes: int | None = None
    ) -> None:
        """Nothing is written yet. The file takes at most `room_bytes`; None: what the drive has."""
        self._copy = copy
        self._room_bytes = room_bytes
        self._record: PackedRecord | None = record
        self._revision = revision
        self._is_stopped = False
        self._is_awaited = threading.Event()
        self._reading = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_there = False

    @property
    def is_there(self) -> bool:
        """True once it is written."""
        return self._is_there

    @property
    def span(self) -> Span:
        """The model's memory is its own."""
        return NO_COPY.span

    def begin(self, lull: Lull) -> None:
        """Starts the thread, which writes in lulls."""
        assert self._thread is None, "begun before"
        self._thread = threading.Thread(
            target=self._run, args=(lull,), name="packed-copy", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Returns when the model's memory is no longer read; what was not written is not kept."""
        self._is_stopped = True
        self._is_awaited.set()
        with self._reading:
            self._record = None

    def close(self) -> None:
        """Stops, and lets the thread remove what it has begun, unless the drive keeps it."""
        self.stop()
        if self._thread is not None:
            self._thread.join(_PATIENCE_S)

    def wait(self) -> None:
        """Returns when the copy is there, or will not be: it is written at once."""
        assert self._thread is not None, "it was not begun"
        self._is_awaited.set()
        self._thread.join()

    def _run(self, lull: Lull) -> None:
        log = structlog.get_logger().bind(path=str(self._copy.path))
        with suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        try:
            lull.wait(self._is_awaited)
            if self._write(lull):
                log.info("a packed copy of the weights was written: starts need no other")
            else:
                log.info("another process writes the packed copy of the weights")
        except StoppedError:
            log.info("no packed copy of the weights was written: they leave the device")
        except (OSError, CheckpointError) as error:  # the checkpoint may be gone by now
            log.info("no packed copy of the weights can be written", reason=str(error))
        self._record = None

    def _write(self, lull: Lull) -> bool:
        """True when the copy is in its place; False where another process writes it.

        Raises: `CheckpointError`, `OSError`, `StoppedError`.
        """
        self._make_room()
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
        with (
            _opened(self._copy.path.parent, os.O_RDONLY | os.O_DIRECTORY) as folder,
            _opened(UNFINISHED_FILE, flags, folder) as file,
        ):
            if not _lock(file, folder):
                return False
            try:
                self._fill(file, folder, lull)
                self._move_in(file, folder)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(UNFINISHED_FILE, dir_fd=folder)
                raise
        self._is_there = True
        return True

    def _move_in(self, file: int, folder: int) -> None:
        """Gives the file its name. Raises: `CheckpointError`, `OSError` where a start would not
        find it, since the model is another by now.
        """
        is_current = self._copy.is_current()
        if is_current:
            os.replace(UNFINISHED_FILE, COPY_FILE, src_dir_fd=folder, dst_dir_fd=folder)
        if not is_current or not os.path.samestat(self._copy.path.stat(), os.fstat(file)):
            raise OSError("the checkpoint has changed meanwhile")

    def _make_room(self) -> None:
        """Removes an old copy that has no room beside the new one. Raises: `OSError`."""
        record, room_bytes = self._record, self._room_bytes
        if room_bytes is None or record is None:
            return
        path = self._copy.path
        most_bytes = record.num_bytes + record.num_bytes // _CONTENTS_SHARE + _CONTENTS_BYTES
        if most_bytes > room_bytes:
            raise OSError("the budget for fetched weights, `disk_bytes`, leaves it no room")
        old_bytes = path.lstat().st_size if path.exists() else 0
        if most_bytes + old_bytes > room_bytes:
            path.unlink()

    def _fill(self, file: int, folder: int, lull: Lull) -> None:
        """Writes all into the file and onto the drive. Raises: as `_write`."""
        record = self._record
        if record is None:
            raise StoppedError
        if not is_own(file, folder):  # others may have given what is not to be lost this name
            raise OSError("the folder belongs to others, or others can write it")
        os.ftruncate(file, 0)
        disk = shutil.disk_usage(folder)
        if disk.free - record.num_bytes < disk.total // _FREE_SHARE:
            raise OSError("the drive would be all but full")
        memories = [Span(tensor.data_ptr(), tensor.nbytes).view() for tensor in record.tensors]
        digests = write_pieces(file, memories, partial(self._in_turn, lull))
        contents = Contents(
            origin=self._copy.origin,
            revision=self._revision,
            entries=record.entries,
            digests=digests,
        )
        write_contents(file, record.num_bytes, contents)
        os.fsync(file)

    def _in_turn(self, lull: Lull, write: Callable[[], str]) -> str:
        """What `write` returns in a lull, unless the memory is wanted. Raises: `StoppedError`."""
        lull.wait(self._is_awaited)
        with self._reading:
            if self._is_stopped:
                raise StoppedError
            return write()


@contextmanager
def _opened(path: str | Path, flags: int, folder: int | None = None) -> Generator[int]:
    """The open file or folder; with a `folder`, a file in it, wherever it has been moved to: a
    model that has taken its place meanwhile keeps what is its own.
    """
    file = os.open(path, flags | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        yield file
    finally:
        os.close(file)


def _lock(file: int, folder: int) -> bool:
    """True when this process alone writes the file, and it still has its name."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.stat(UNFINISHED_FILE, dir_fd=folder), os.fstat(file))
    except (BlockingIOError, FileNotFoundError):
        return False
