"""Blocks in files of this machine, sealed: `path/MODEL/LAYOUT/OWNER/NAME.kv`.

Owns the directory of one model and what happens when the drive does not do as it should. What is
there at the start is found again by its names; whose it is nobody can tell before a request brings
the salt. Files of another revision or layout, halves and strangers are removed at the start. A
drive that refuses a write ends the keeping, with one line in the log, until a block is kept again
that is tried after a while; what is there is still read.
A read that fails says nothing of the file, which stays: only what is proven wrong goes. It is
written anew, though, where somebody has the block, since the place on the drive may be worn out.
Read next: `namespace` (what is in a file), `block_file`, `shelves`.
"""

import errno
import fcntl
import hashlib
import os
import re
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import structlog

from gpu_pool.kv.tiers.block_file import create_buffer, read_file, round_up, write_file
from gpu_pool.kv.tiers.namespace import BlockName, TierNamespace, measure_sealed
from gpu_pool.kv.tiers.refusals import Refusals
from gpu_pool.kv.tiers.settings import FileTierSettings
from gpu_pool.kv.tiers.shelves import Entry, Shelves
from gpu_pool.kv.tiers.tier import TierBooks

_FILE: Final = re.compile(r"([0-9a-f]{64})\.kv")
_FOLDER: Final = re.compile(r"[0-9a-f]{32}")
"""Of a model, of a layout, of an account: each 16 bytes of a digest."""
_LOCK_NAME: Final = "lock"
_NOT_OURS: Final = (errno.ENOENT, errno.ELOOP)
"""What opening a file says that is gone, or whose place a link has taken."""


class _Buffers(threading.local):
    """Pages for direct access, each thread's own: one buffer for each size."""

    def __init__(self) -> None:
        """None yet; called in every thread."""
        self.by_size: dict[int, memoryview] = {}


class FileTier:
    """A `Tier` on a drive. One process at a time may use the directory of a model."""

    def __init__(
        self,
        settings: FileTierSettings,
        model_name: str,
        layout: bytes,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes the directory and finds what is there. Raises: `OSError`."""
        model = settings.path / name_model_folder(model_name)
        settings.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        _make_own(model)
        self._folder = model / layout.hex()
        self._shelves = Shelves(settings.max_bytes, settings.account_bytes)
        self._lock = threading.Lock()
        self._being_kept: set[Entry] = set()
        self._unread: set[Entry] = set()
        """Files whose last read has failed."""
        self._buffers = _Buffers()
        self._num_damaged = self._num_unread = 0
        self._refusals = Refusals(monotonic_s)
        self._is_closed = False
        self._lock_file = _lock(model)
        try:
            _remove_others(model, {self._folder.name, _LOCK_NAME})
            _make_own(self._folder)
            for entry, num_bytes in self._scan():
                self._enter(entry, num_bytes)
        except OSError:
            os.close(self._lock_file)
            raise

    @property
    def books(self) -> TierBooks:
        """How full the tier is."""
        return TierBooks(
            self._shelves.num_bytes,
            self._num_damaged,
            self._refusals.is_refusing or self._is_closed,
            self._num_unread,
            self._refusals.is_refusing and self._may_keep,
        )

    @property
    def _may_keep(self) -> bool:
        """False while a drive is not to be asked."""
        return not self._is_closed and self._refusals.may_ask

    def has(self, space: TierNamespace, name: BlockName) -> bool:
        """True while there is a file of that name, unless its last read has failed."""
        return self._is_readable(Entry(space.owner, name.text))

    def may_have(self, space: TierNamespace, name: BlockName) -> bool:
        """True while the block is here: nobody else puts any."""
        return self._shelves.has(Entry(space.owner, name.text))

    def keep(self, space: TierNamespace, name: BlockName, block: memoryview) -> bool:
        """Seals a block into a file, and removes others where that is too much."""
        entry = Entry(space.owner, name.text)
        num_bytes = round_up(measure_sealed(len(block)))
        if not self._may_keep or not self._shelves.fits(num_bytes) or not self._begin(entry):
            return False
        try:
            pages = self._find_pages(num_bytes)
            space.seal(name, block, pages)
            write_file(self._make_place(entry), pages)
        except OSError as error:
            self._note_refused(error)
            return False
        else:
            self._enter(entry, num_bytes)
            self._note_kept()
            return True
        finally:
            self._being_kept.discard(entry)

    def fetch(self, space: TierNamespace, name: BlockName, block: memoryview) -> bool:
        """Fills `block`; False when there is no such file, not what was put there, or when it
        cannot be read now.
        """
        entry = Entry(space.owner, name.text)
        pages = self._find_pages(round_up(measure_sealed(len(block))))
        try:
            num_read = read_file(self._find_path(entry), pages)
        except OSError as error:
            if error.errno in _NOT_OURS:
                self._drop(entry, is_damaged=False)
            else:
                self._note_unread(entry, error)
            return False
        if space.open(name, pages[:num_read], block):
            with self._lock:
                self._shelves.touch(entry)
                self._unread.discard(entry)
            return True
        self._drop(entry, is_damaged=True)
        return False

    def remove(self, space: TierNamespace, names: Sequence[BlockName]) -> None:
        """Removes files."""
        for name in names:
            self._drop(Entry(space.owner, name.text), is_damaged=False)

    def close(self) -> None:
        """Lets another process have the directory; the files stay."""
        self._is_closed = True  # a fetch may be under way that would keep what it has brought
        os.close(self._lock_file)

    def _find_pages(self, num_bytes: int) -> memoryview:
        """This thread's own buffer for files of that size."""
        by_size = self._buffers.by_size
        if num_bytes not in by_size:
            by_size[num_bytes] = memoryview(create_buffer(num_bytes))
        return by_size[num_bytes]

    def _find_path(self, entry: Entry) -> Path:
        """Where a block is."""
        return self._folder / entry.owner / f"{entry.name}.kv"

    def _make_place(self, entry: Entry) -> Path:
        """Where a block is to be; its folder is there then. Raises: `OSError`."""
        path = self._find_path(entry)
        try:
            path.parent.mkdir(exist_ok=True, mode=0o700)
        except FileNotFoundError:
            self._take_anew()
            path.parent.mkdir(exist_ok=True, mode=0o700)
        return path

    def _take_anew(self) -> None:
        """Makes the directory once more, which somebody has removed: an operator who wants all of
        it gone need not stop the node. Raises: `OSError`, where another process was quicker, too.
        """
        model = self._folder.parent
        with self._lock:
            model.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            _make_own(model)
            if not _is_at(self._lock_file, model / _LOCK_NAME):
                lock_file = _lock(model)
                os.close(self._lock_file)
                self._lock_file = lock_file
            _make_own(self._folder)

    def _is_readable(self, entry: Entry) -> bool:
        """True for a file that is there, as far as is known."""
        return self._shelves.has(entry) and entry not in self._unread

    def _begin(self, entry: Entry) -> bool:
        """True for one thread at a time, which may write the file that is not there yet, or that
        cannot be read.
        """
        with self._lock:
            if self._is_readable(entry) or entry in self._being_kept:
                return False
            self._being_kept.add(entry)
            return True

    def _enter(self, entry: Entry, num_bytes: int) -> None:
        """Takes a file into the books and removes those that are too many."""
        with self._lock:
            gone = self._shelves.put(entry, num_bytes) if not self._shelves.has(entry) else []
            self._unread.difference_update((entry, *gone))
        for other in gone:
            self._unlink(other)

    def _drop(self, entry: Entry, *, is_damaged: bool) -> None:
        """Forgets a block that is not there, or not what was put there."""
        with self._lock:
            self._shelves.remove(entry)
            self._unread.discard(entry)
            self._num_damaged += is_damaged
        self._unlink(entry)

    def _unlink(self, entry: Entry) -> None:
        """Removes a file that is in the books no more; a drive may refuse that, as one does that
        can only be read by now.
        """
        try:
            self._find_path(entry).unlink(missing_ok=True)
        except OSError as error:
            self._note_refused(error)

    def _note_unread(self, entry: Entry, error: OSError) -> None:
        """Counts a read that has failed; the next one may not, and this is in the log once."""
        with self._lock:
            self._num_unread += 1
            if self._shelves.has(entry):
                self._unread.add(entry)
            is_first = self._num_unread == 1
        if is_first:
            structlog.get_logger().warning(
                "a KV block in a file cannot be read; others will only be counted",
                path=str(self._folder),
                reason=error.strerror,
            )

    def _note_refused(self, error: OSError) -> None:
        """Keeps nothing for a while."""
        pause_s = self._refusals.note_refused()
        if pause_s:
            structlog.get_logger().warning(
                "KV blocks are not kept in files: the drive refuses",
                path=str(self._folder),
                reason=error.strerror,
                next_try_s=pause_s,
            )

    def _note_kept(self) -> None:
        """Keeps on."""
        if self._refusals.note_done():
            structlog.get_logger().info("KV blocks are kept in files again", path=str(self._folder))

    def _scan(self) -> Iterator[tuple[Entry, int]]:
        """What earlier lives have left, oldest first; everything else is removed."""
        found: list[tuple[float, Entry, int]] = []
        for owner in self._folder.iterdir():
            if not _FOLDER.fullmatch(owner.name) or not owner.is_dir() or owner.is_symlink():
                _remove(owner)
                continue
            for path in owner.iterdir():
                match = _FILE.fullmatch(path.name)
                status = path.lstat()
                if match is None or not path.is_file() or not self._shelves.fits(status.st_size):
                    _remove(path)
                else:
                    entry = Entry(owner.name, match.group(1))
                    found.append((status.st_mtime, entry, status.st_size))
            if not any(owner.iterdir()):
                owner.rmdir()
        for _, entry, num_bytes in sorted(found, key=lambda item: item[0]):
            yield entry, num_bytes


def name_model_folder(model_name: str) -> str:
    """The folder of a model under the tier's path."""
    return hashlib.sha256(model_name.encode()).hexdigest()[:32]


def remove_strangers(path: Path, model_names: Iterable[str]) -> None:
    """Removes what models have left that this node serves no more. Raises: `OSError`.

    Only folders as tiers make them: an operator may have named a directory that has other things.
    Nor those that somebody has: another node may have been given the same path by mistake.
    """
    kept = {name_model_folder(name) for name in model_names}
    for folder in path.iterdir() if path.is_dir() else ():
        is_ours = _FOLDER.fullmatch(folder.name) and (folder / _LOCK_NAME).is_file()
        if is_ours and folder.name not in kept:
            try:
                lock_file = _lock(folder)
            except BlockingIOError:
                structlog.get_logger().warning(
                    "KV files of another model stay: some process uses them", path=str(folder)
                )
                continue
            try:
                _remove(folder)
            finally:
                os.close(lock_file)


def _lock(model: Path) -> int:
    """A descriptor as long as which a model's folder is nobody else's. Raises: `OSError`."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    lock_file = os.open(model / _LOCK_NAME, flags, 0o600)
    try:
        fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock_file)
        raise
    return lock_file


def _is_at(file: int, path: Path) -> bool:
    """True while an open file still has its name."""
    try:
        return os.path.samestat(os.fstat(file), path.lstat())
    except FileNotFoundError:
        return False


def _make_own(folder: Path) -> None:
    """Makes a directory of this process's own, if there is none. Raises: `OSError`.

    In a place where others may write, one could lie there already that leads elsewhere, and
    whatever a tier does not know in its folders it removes.
    """
    folder.mkdir(exist_ok=True, mode=0o700)
    status = folder.lstat()
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    if not is_own or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(errno.EPERM, "not a directory of this process's own", str(folder))


def _remove_others(folder: Path, kept: set[str]) -> None:
    """Empties a model's folder of all but those names."""
    for path in folder.iterdir():
        if path.name not in kept:
            _remove(path)


def _remove(path: Path) -> None:
    """Removes a file, or a directory with all in it; links are not followed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
