"""The adapters' files of one node: there, on their way, or to be asked for.

Owns who gets which file and how long it stays for them; one event loop uses it. A file that is here
is given at once; one that is not is brought by the first request that needs it, over that one's own
stream, while others wait for it. Must not know models. Read next: `file_fetch`, `shelf_books`
(whose files go), `shelf_folder` (the disk).
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import structlog

from contracts.adapters import AdapterRef
from contracts.errors import InvalidRequest, PoolSaturated
from contracts.ids import AccountId, NodeId
from gpu_pool.plan import AdapterFile
from gpu_pool.room_settings import AdapterSettings
from gpu_pool.server.adapters.file_fetch import PATIENCE_S, FileFetch
from gpu_pool.server.adapters.piece_line import PieceLine
from gpu_pool.server.adapters.shelf_books import ShelfBooks
from gpu_pool.server.adapters.shelf_folder import IndexEntry, ShelfFolder

log = structlog.get_logger(__name__)
SWEEP_S: Final = 600.0
_DAY_S: Final = 86_400.0


class AdapterLease:
    """A file that stays where it is until `release`."""

    __slots__ = ("_let_go", "file")

    def __init__(self, file: AdapterFile, let_go: Callable[[], None]) -> None:
        """Made by the shelf."""
        self.file: Final = file
        self._let_go: Callable[[], None] | None = let_go

    def release(self) -> None:
        """The request needs the file no more. The first call counts."""
        let_go, self._let_go = self._let_go, None
        if let_go is not None:
            let_go()


class AdapterShelf:
    """One node's."""

    def __init__(
        self,
        path: Path,
        max_bytes: int,
        keep_s: float,
        unix_s: Callable[[], float],
        patience_s: float = PATIENCE_S,
    ) -> None:
        """Nothing is touched before a request needs a file, or `start` finds the folder. What is
        not used for `keep_s` goes.
        """
        self._folder = ShelfFolder(path)
        self.books: Final = ShelfBooks(max_bytes)
        self._keep_s = keep_s
        self._unix_s = unix_s
        self._patience_s = patience_s
        self._disk = ThreadPoolExecutor(1, "adapters")
        self._opening = asyncio.Lock()
        self._is_open = False
        self._fetches: dict[bytes, FileFetch] = {}

    async def start(self) -> None:
        """Looks at what former lives have left, if there is any."""
        if await asyncio.to_thread(self._folder.path.is_dir):
            try:
                await self._open()
            except PoolSaturated:
                log.warning("the shelf of adapters is opened when it is needed")

    async def run(self) -> None:
        """Sends away what nobody has used for long, and notes what was, until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_S)
            self.sweep()
            if self._is_open:
                self._note()

    def sweep(self) -> None:
        """Sends away what nobody has used for long: its owner may have deleted it long ago."""
        self._remove(self.books.list_unused(self._unix_s() - self._keep_s))

    async def stop(self) -> None:
        """Notes who has used what, and lets another process have the folder."""
        if self._is_open:
            self._note()
        self._disk.submit(self._folder.close)
        await asyncio.to_thread(self._disk.shutdown)

    def find(self, ref: AdapterRef, account_id: AccountId) -> AdapterLease | None:
        """The file, if it is here.

        Raises: `InvalidRequest` when its length is another one, `PoolSaturated` when the account's
        requests keep as much as they may.
        """
        file = self.books.find(ref.weights_sha256)
        if file is None or not file.is_ready:
            return None
        _check_length(ref, file.num_bytes)
        self._require_share(ref, account_id)
        is_new = account_id not in file.holders
        self.books.hold(ref.weights_sha256, account_id, self._unix_s())
        if is_new:
            self._note()
        return self._lend(ref, account_id)

    async def obtain(self, ref: AdapterRef, account_id: AccountId, line: PieceLine) -> AdapterLease:
        """The file, as soon as it is here, which `line` may have to bring.

        Raises: `PoolSaturated` (no room), `AdapterUnsupported` (what came is something else),
        `InvalidRequest`.
        """
        await self._open()
        lease = self.find(ref, account_id)
        if lease is not None:
            return lease
        digest = ref.weights_sha256
        known = self.books.find(digest)
        if known is not None:
            _check_length(ref, known.num_bytes)
        self._require_share(ref, account_id)
        fetch = self._fetches.get(digest) or self._begin(ref, account_id)
        self.books.hold(digest, account_id, self._unix_s())
        fetch.num_waiting += 1
        try:
            while not fetch.is_complete:
                async with fetch.turn:
                    if not fetch.is_complete:
                        await fetch.carry(line)
        except BaseException:
            self.books.let_go(digest, account_id, self._unix_s())
            raise
        finally:
            fetch.num_waiting -= 1
            if self._fetches.get(digest) is fetch:
                self._settle(digest, fetch)
        return self._lend(ref, account_id)

    def _begin(self, ref: AdapterRef, account_id: AccountId) -> FileFetch:
        """A fetch that has room for its file. Raises: `PoolSaturated`."""
        digest = ref.weights_sha256
        known = self.books.find(digest)
        if known is None:
            self._make_room(ref.num_bytes, account_id)
            self.books.add(digest, ref.num_bytes, {})
        fetch = FileFetch(
            ref, self._folder, self._disk, self._patience_s, is_there=known is not None
        )
        self._fetches[digest] = fetch
        return fetch

    def _settle(self, digest: bytes, fetch: FileFetch) -> None:
        """A request waits no more: the file has come, or may have lost its last one."""
        file = self.books.find(digest)
        assert file is not None, "a fetch of no file"
        if fetch.is_complete:
            del self._fetches[digest]
            file.is_ready = True
            self._note()
        elif not fetch.num_waiting:
            del self._fetches[digest]
            is_former = fetch.is_there
            if not is_former:
                self.books.remove(digest)
            fetch.give_up(keeps_former=is_former)

    def _require_share(self, ref: AdapterRef, account_id: AccountId) -> None:
        """Raises: `PoolSaturated` when the account's requests keep as many files as they may."""
        if not self.books.may_need(ref.weights_sha256, ref.num_bytes, account_id):
            raise PoolSaturated(
                "The account's requests need too many adapters of this node at once."
            )

    def _make_room(self, num_bytes: int, account_id: AccountId | None) -> None:
        """Sends files away until one of so many bytes fits. Raises: `PoolSaturated`."""
        leaving = self.books.choose_leaving(num_bytes, account_id, self._unix_s())
        if leaving is None:
            raise PoolSaturated("This node has no room for the adapter's file.")
        self._remove(leaving)

    def _remove(self, digests: Sequence[bytes]) -> None:
        """These files go."""
        for digest in digests:
            self.books.remove(digest)
            self._disk.submit(self._folder.remove, digest)

    def _lend(self, ref: AdapterRef, account_id: AccountId) -> AdapterLease:
        """The lease of a file that is held already."""
        digest = ref.weights_sha256
        file = AdapterFile(ref.digest, str(self._folder.locate(digest)), ref.scale)
        return AdapterLease(file, lambda: self.books.let_go(digest, account_id, self._unix_s()))

    async def _open(self) -> None:
        """Takes the folder over, once. Raises: `PoolSaturated` while that cannot be done."""
        if self._is_open:
            return
        async with self._opening:
            if self._is_open:
                return
            loop = asyncio.get_running_loop()
            try:
                found = await loop.run_in_executor(self._disk, self._folder.open)
            except OSError as error:
                reason = error.strerror or type(error).__name__
                log.error("adapters_have_no_folder", path=str(self._folder.path), reason=reason)
                raise PoolSaturated("This node can keep no adapters at the moment.") from error
            for digest, entry in found.items():
                self.books.add(digest, entry.num_bytes, entry.holders)
            self._is_open = True
            self.sweep()
            self._make_room(0, None)

    def _note(self) -> None:
        """Has the index written: who holds what, for the next life."""
        entries = {
            digest: IndexEntry(file.num_bytes, dict(file.holders))
            for digest, file in self.books
            if file.is_ready or digest not in self._fetches or self._fetches[digest].is_there
        }
        self._disk.submit(self._folder.write_index, entries)


def create_shelf(
    settings: AdapterSettings, node_id: NodeId, unix_s: Callable[[], float]
) -> AdapterShelf:
    """The shelf of a node, in its own folder."""
    keep_s = settings.keep_days * _DAY_S
    return AdapterShelf(settings.folder / node_id, settings.disk_bytes, keep_s, unix_s)


def _check_length(ref: AdapterRef, num_bytes: int) -> None:
    """Raises `InvalidRequest` for a ref that says another length than the file's."""
    if ref.num_bytes != num_bytes:
        raise InvalidRequest("The adapter's length is not that of its file.")
