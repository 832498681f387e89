"""The weights of one model on this node's disk: there, on their way, or to be fetched.

Owns the files of an origin and who may remove them: nodes that share a folder hold a lock on it
while they rely on its files, fetch one at a time, and remove nothing that another relies on. Must
not know budgets or requests. Read next: `download`, `gpu_pool.server.placement.disk_room`.
"""

import asyncio
import fcntl
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

import aiohttp
import structlog

from gpu_pool.server.remote.download import (
    PARTIAL,
    PATIENCE,
    FetchPatience,
    FetchRefusedError,
    FileFetcher,
)
from gpu_pool.weight_origin import WeightOrigin, read_origin
from gpu_pool.weights.packed_file import COPY_FILE, UNFINISHED_FILE

_LOCK_FILE: Final = ".hearth-weights.lock"
_MADE: Final = (COPY_FILE, UNFINISHED_FILE)
"""What a core makes of the files beside them."""
_POLL_S: Final = 0.2
"""How often a lock that another process holds is tried."""


class WeightFiles(Protocol):
    """What a node may do about a model's files."""

    @property
    def are_here(self) -> bool:
        """True while a core can be started from them."""
        ...

    @property
    def disk_bytes(self) -> int:
        """What they take of the budget for fetched files, whole or in part."""
        ...

    @property
    def missing_bytes(self) -> int:
        """What fetching them would take besides."""
        ...

    async def fetch(self) -> None:
        """Returns when they are here. Raises: `FetchRefusedError`, `OSError`."""
        ...

    def drop(self) -> bool:
        """Removes them; False where another node relies on them."""
        ...


class OwnWeights:
    """Files that are nowhere else: neither fetched nor removed."""

    are_here = True
    disk_bytes = 0
    missing_bytes = 0

    async def fetch(self) -> None:
        """They are here."""

    def drop(self) -> bool:
        """They stay."""
        return False


class FetchedWeights:
    """Files that can be fetched again."""

    def __init__(
        self,
        folder: Path,
        origin: WeightOrigin,
        token: str | None = None,
        patience: FetchPatience = PATIENCE,
    ) -> None:
        """Looks at the folder. Files of another size than listed do not count."""
        self._folder = folder
        self._origin = origin
        self._token = token
        self._patience = patience
        self._lock: int | None = None
        self.are_here = self._are_whole() and self._try_lock(fcntl.LOCK_SH)

    @property
    def disk_bytes(self) -> int:
        """Whole files and the beginnings of others; of what is here, its packed copy, too."""
        return self._measure(self._fetched) + (self._measure(_MADE) if self.are_here else 0)

    @property
    def missing_bytes(self) -> int:
        """What is not on disk yet."""
        return max(0, self._origin.num_bytes - self._measure(self._fetched))

    async def fetch(self) -> None:
        """Fetches what is missing; what another node is fetching into the folder is waited for."""
        while not self._try_lock(fcntl.LOCK_EX):
            if self._try_lock(fcntl.LOCK_SH):  # nobody fetches: others rely on what is there
                self.are_here = self._are_whole()
                if not self.are_here:
                    self._unlock()
                    raise FetchRefusedError("Another node relies on other files in this folder.")
                return
            await asyncio.sleep(_POLL_S)
        try:
            self._remove(_MADE)  # of other files than those that come
            async with aiohttp.ClientSession(auto_decompress=False) as session:
                fetcher = FileFetcher(session, self._folder, self._token, self._patience)
                for file in self._origin.files:
                    if not self._is_whole(file.name, file.num_bytes):
                        await fetcher.fetch(self._origin.locate(file), file)
        except BaseException:
            self._unlock()
            raise
        self.are_here = self._try_lock(fcntl.LOCK_SH)

    def drop(self) -> bool:
        """Removes whole files, beginnings and packed copies; False where another node relies on
        them.
        """
        if not self._try_lock(fcntl.LOCK_EX):
            self._try_lock(fcntl.LOCK_SH)
            return False
        self.are_here = False
        self._remove((*_MADE, *self._fetched))
        self._unlock()
        structlog.get_logger().info("weights left the disk", folder=str(self._folder))
        return True

    @property
    def _fetched(self) -> Sequence[str]:
        """What may be there of the origin's files."""
        return [file.name + ending for file in self._origin.files for ending in ("", PARTIAL)]

    def _measure(self, names: Sequence[str]) -> int:
        """The bytes of those that are there."""
        present = 0
        for name in names:
            with suppress(FileNotFoundError):
                present += (self._folder / name).stat().st_size
        return present

    def _remove(self, names: Sequence[str]) -> None:
        """Removes those that are there."""
        for name in names:
            (self._folder / name).unlink(missing_ok=True)

    def _are_whole(self) -> bool:
        """True when every file is there; digests were compared when they came."""
        return all(self._is_whole(file.name, file.num_bytes) for file in self._origin.files)

    def _is_whole(self, name: str, num_bytes: int) -> bool:
        """True for a file of this size under its own name."""
        path = self._folder / name
        return path.is_file() and path.stat().st_size == num_bytes

    def _try_lock(self, kind: int) -> bool:
        """True when this process holds the folder's lock like that. Raises: `OSError`."""
        if self._lock is None:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            self._lock = os.open(self._folder / _LOCK_FILE, flags, 0o644)
        try:
            fcntl.flock(self._lock, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _unlock(self) -> None:
        """Lets others have it."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def find_weights(folder: Path, token: str | None) -> WeightFiles:
    """The files of the model in a folder. Raises: `UnsupportedFeature`, `OSError`."""
    origin = read_origin(folder)
    return OwnWeights() if origin is None else FetchedWeights(folder, origin, token)
