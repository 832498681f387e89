"""The journal: what requests consumed, in files of this machine, until the ledger has it.

Owns the folder, the form of its files and the order of writing. A record is handed to the system
before the last byte of its answer goes out: killing this process at any moment loses nothing that
a client has seen the end of. A power cut can lose what the system had not written yet, unless
`fsync` is set. A file that still exists is not in the ledger yet, or not known to be.
Must not know the ledger. Read next: `gateway.metering.ledger_writer`.
"""

import asyncio
import fcntl
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Final

import msgspec
import structlog

from contracts.errors import StoreUnavailable
from contracts.settings import SettingsError
from contracts.usage import UsageRecord, decode_usage_record, encode_usage_record

log = structlog.get_logger(__name__)
SUFFIX: Final = ".journal"
_FRAME: Final = struct.Struct("<II")
"""Before each record: its length and its CRC-32."""
_LOCK_NAME: Final = "lock"
_BOOTS_NAME: Final = "boots"
_OPTIONS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC


class Journal:
    """Appends records to the newest file of a folder that belongs to this process alone."""

    def __init__(self, folder: Path, boot: str, *, syncs: bool, max_bytes: int) -> None:
        """`boot` names this life of the process in its files' names. `syncs` waits for the disk
        before a record counts as written. Beyond `max_bytes` in all the journal is full.

        Raises: `SettingsError` when the folder cannot be used or belongs to another process.
        """
        self._folder = folder
        self._boot = boot
        self._syncs = syncs
        self._max_bytes = max_bytes
        self._lock = _lock_folder(folder)
        self._number = max((_read_number(path) for path in self.list_files()), default=0)
        self._path: Path | None = None
        self._descriptor = -1
        self._size = 0
        self._unwritten: list[bytes] = []
        self._sealed_bytes = sum(path.stat().st_size for path in self.list_files())
        self._sync: asyncio.Future[None] | None = None
        self._boots = folder / _BOOTS_NAME
        self.earlier_boots = self._boots.read_text().split() if self._boots.exists() else []
        """Lives of the process whose leases may not have ended."""
        self._boots.write_text("\n".join((*self.earlier_boots, boot)))

    def forget_earlier_boots(self) -> None:
        """What earlier lives held has been given back."""
        self.earlier_boots = []
        self._boots.write_text(self._boot)

    @property
    def folder(self) -> Path:
        """Where the files lie."""
        return self._folder

    @property
    def boot(self) -> str:
        """The name of this life of the process."""
        return self._boot

    @property
    def is_usable(self) -> bool:
        """False while records wait in memory for a disk that takes none, or there are too many."""
        return not self._unwritten and self._sealed_bytes + self._size < self._max_bytes

    @property
    def num_waiting_bytes(self) -> int:
        """What the ledger does not have yet."""
        return self._sealed_bytes + self._size

    def require_room(self) -> None:
        """Raises `StoreUnavailable` when no further request could be recorded."""
        if not self.is_usable:
            raise StoreUnavailable("Usage cannot be recorded right now.", retry_after_s=1)

    async def append(self, record: UsageRecord) -> None:
        """Returns once the record is with the system, or on the disk if that is asked for.

        A disk that refuses keeps it in memory, tried again with the next one: whoever computed
        for this request has done so, and refusing the record would help nobody.
        """
        self._write(_to_frame(record))
        if self._syncs:
            await self._wait_for_disk()

    def add_earlier(self, boot: str, records: Sequence[UsageRecord]) -> None:
        """A sealed file of `records` that belong to an earlier life. Raises: `OSError`."""
        if not records:
            return
        self._number += 1
        path = self._folder / f"{self._number:012d}-{boot}{SUFFIX}"
        with os.fdopen(os.open(path, _OPTIONS, 0o600), "wb") as file:
            file.write(b"".join(map(_to_frame, records)))
            file.flush()
            if self._syncs:
                os.fdatasync(file.fileno())
            self._sealed_bytes += file.tell()

    def seal(self) -> None:
        """Ends the file that is being written, so that it can be read and removed."""
        if self._unwritten:
            self._write(b"")
        if self._descriptor >= 0:
            if self._syncs:  # whoever waits for the disk finds another file in its place
                os.fdatasync(self._descriptor)
            os.close(self._descriptor)
            self._sealed_bytes += self._size
            self._descriptor, self._size, self._path = -1, 0, None

    def list_files(self) -> list[Path]:
        """All files, oldest first, the one that is being written included."""
        return sorted(self._folder.glob(f"*{SUFFIX}"), key=_read_number)

    def list_sealed(self) -> list[Path]:
        """The files that nothing is added to, oldest first."""
        return [path for path in self.list_files() if path != self._path]

    def remove(self, path: Path) -> None:
        """Forgets a file that the ledger has."""
        self._sealed_bytes -= path.stat().st_size
        path.unlink()

    def close(self) -> None:
        """Seals, and gives the folder to whoever comes next."""
        self.seal()
        self._lock.close()

    def _write(self, frame: bytes) -> None:
        """One write of everything that waits: the system takes all of it or, when full, a part."""
        data = b"".join((*self._unwritten, frame)) if self._unwritten else frame
        try:
            if self._descriptor < 0:
                self._open()
            num_written = os.write(self._descriptor, data)
            if num_written < len(data):
                os.ftruncate(self._descriptor, self._size)
                raise OSError("the disk is full")
        except OSError as error:
            log.error("journal_unwritable", error=str(error))
            if frame:
                self._unwritten.append(frame)
            return
        self._unwritten.clear()
        self._size += num_written

    def _open(self) -> None:
        """Starts the next file."""
        self._number += 1
        self._path = self._folder / f"{self._number:012d}-{self._boot}{SUFFIX}"
        self._descriptor = os.open(self._path, _OPTIONS, 0o600)
        self._size = 0

    async def _wait_for_disk(self) -> None:
        """Returns after an fsync that began after the caller's write; one serves all who wait."""
        running = self._sync
        if running is not None:
            await asyncio.shield(running)  # it may have begun too early for us: the next one counts
            if self._sync is not None and self._sync is not running:
                await asyncio.shield(self._sync)
                return
        if self._descriptor < 0:
            return
        duplicate = os.dup(self._descriptor)  # sealing in between must not close it under the sync
        self._sync = task = asyncio.ensure_future(asyncio.to_thread(_sync_and_close, duplicate))
        try:
            await asyncio.shield(task)
        finally:
            if self._sync is task and task.done():
                self._sync = None


def _to_frame(record: UsageRecord) -> bytes:
    """The record as files have it."""
    payload = encode_usage_record(record)
    return _FRAME.pack(len(payload), zlib.crc32(payload)) + payload


def read_journal(path: Path) -> Iterator[UsageRecord]:
    """The records of a file, up to its end or to a piece that was never written to its end."""
    data = path.read_bytes()
    position = 0
    while position + _FRAME.size <= len(data):
        length, checksum = _FRAME.unpack_from(data, position)
        payload = data[position + _FRAME.size : position + _FRAME.size + length]
        if len(payload) < length or zlib.crc32(payload) != checksum:
            break
        try:
            yield decode_usage_record(payload)
        except msgspec.MsgspecError:
            log.error("journal_record_unreadable", file=path.name, position=position)
        position += _FRAME.size + length
    if position < len(data):
        log.error("journal_torn", file=path.name, position=position, num_bytes=len(data))


def read_boot(path: Path) -> str:
    """The life of the process that wrote the file."""
    return path.name.removesuffix(SUFFIX).partition("-")[2]


def _read_number(path: Path) -> int:
    return int(path.name.partition("-")[0])


def _sync_and_close(descriptor: int) -> None:
    """Waits for the disk."""
    try:
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def _lock_folder(folder: Path) -> IO[str]:
    """A lock that ends with this process, whatever happens to it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (folder / _LOCK_NAME).open("w")
    except OSError as error:
        raise SettingsError(f"The journal {folder} cannot be written: {error.strerror}.") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise SettingsError(
            f"The journal {folder} belongs to a gateway that is running; give each its own."
        ) from error
    return lock
