"""The folder that a node keeps adapters' files in, and what of it outlives the node.

Owns names, permissions and the lock: one node has the folder at a time, so that what looks
unfinished when it takes it over is nobody's. Calls block: one thread makes them all, in order.
Must not know who may have what. Read next: `shelf`.
"""

import fcntl
import hashlib
import os
import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
import structlog

from contracts.adapters import DIGEST_BYTES
from contracts.ids import AccountId

_LOCK: Final = ".lock"
_INDEX: Final = "index.msgpack"
_ENDING: Final = ".safetensors"
_PARTIAL: Final = ".partial"
_NAME: Final = re.compile(rf"[0-9a-f]{{{2 * DIGEST_BYTES}}}{re.escape(_ENDING)}")
_CHUNK_BYTES: Final = 1024 * 1024


class IndexEntry(msgspec.Struct, frozen=True, array_like=True):
    """What was known of a file. Units: seconds since 1970."""

    num_bytes: int
    holders: dict[AccountId, float]


_decoder: Final = msgspec.msgpack.Decoder(dict[bytes, IndexEntry])


class ShelfFolder:
    """One node's folder."""

    def __init__(self, path: Path) -> None:
        """Nothing is looked at before `open`."""
        self.path: Final = path
        self._lock: int | None = None

    def open(self) -> Mapping[bytes, IndexEntry]:
        """The whole files that are there, by digest, as far as names and lengths tell.

        Removes what is unfinished, of another length than noted, or nobody's. Raises: `OSError`,
        also while another process has the folder.
        """
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found = self._list_whole()
        except BaseException:
            os.close(lock)
            raise
        self._lock = lock
        return found

    def close(self) -> None:
        """Lets another process have the folder."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def locate(self, digest: bytes) -> Path:
        """Where the file with that content is, or would be."""
        return self.path / (digest.hex() + _ENDING)

    def begin(self, digest: bytes, num_bytes: int) -> int:
        """A descriptor of a new file that has room for so many bytes. Raises: `OSError`."""
        path = self._locate_partial(digest)
        path.unlink(missing_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            os.posix_fallocate(file, 0, num_bytes)
        except BaseException:
            os.close(file)
            self.give_up(digest)
            raise
        return file

    def settle(self, digest: bytes) -> None:
        """What was begun is whole: it gets its name. Raises: `OSError`."""
        self._locate_partial(digest).rename(self.locate(digest))

    def give_up(self, digest: bytes) -> None:
        """What was begun goes."""
        with suppress(OSError):
            self._locate_partial(digest).unlink()

    def remove(self, digest: bytes) -> None:
        """A whole file goes."""
        with suppress(OSError):
            self.locate(digest).unlink()

    def is_sound(self, digest: bytes) -> bool:
        """True for a file that holds what its name says."""
        found = hashlib.sha256()
        try:
            with self.locate(digest).open("rb", buffering=0) as file:
                while chunk := file.read(_CHUNK_BYTES):
                    found.update(chunk)
        except OSError:
            return False
        return found.digest() == digest

    def write_index(self, entries: Mapping[bytes, IndexEntry]) -> None:
        """Notes what is known of the files. What cannot be noted is not known in the next life."""
        new = self.path / f"{_INDEX}{_PARTIAL}"
        try:
            new.write_bytes(msgspec.msgpack.encode(entries))
            new.chmod(0o600)
            new.rename(self.path / _INDEX)
        except OSError as error:
            structlog.get_logger().warning("adapters are not noted", reason=error.strerror)

    def _list_whole(self) -> dict[bytes, IndexEntry]:
        """Files that are noted, with their own lengths; others that are this folder's go."""
        noted = self._read_index()
        found: dict[bytes, IndexEntry] = {}
        for entry in os.scandir(self.path):
            about = entry.stat(follow_symlinks=False)
            if entry.name.endswith(_PARTIAL):
                os.unlink(entry.path)
            elif _NAME.fullmatch(entry.name) and stat.S_ISREG(about.st_mode):
                digest = bytes.fromhex(entry.name.removesuffix(_ENDING))
                known = noted.get(digest)
                if known is not None and about.st_size == known.num_bytes:
                    found[digest] = known
                else:
                    os.unlink(entry.path)
        return found

    def _read_index(self) -> dict[bytes, IndexEntry]:
        """What the last life has noted; nothing where that cannot be read."""
        try:
            return _decoder.decode((self.path / _INDEX).read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            structlog.get_logger().warning("adapters' holders are lost", error=type(error).__name__)
            return {}

    def _locate_partial(self, digest: bytes) -> Path:
        """Where the file is while it comes."""
        return self.path / (digest.hex() + _PARTIAL)
