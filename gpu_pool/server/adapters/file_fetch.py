"""One adapter's file on its way to the shelf, whoever's stream it comes on.

Owns how far it has got. One request at a time carries it; when that one's stream ends, or is slow
while others wait, the next goes on where it stopped. What is not what it was announced as leaves
nothing. Disk work is done by one thread in the order in which it is asked for, so that a request
that ends in the middle of it leaves no half step. Read next: `shelf` (who waits for it).
"""

import asyncio
import hashlib
import os
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final, TypeVar

import structlog

from contracts.adapters import MAX_ASKED_BYTES, AdapterRef
from contracts.errors import AdapterUnsupported, PoolSaturated
from gpu_pool.server.adapters.piece_line import PieceLine
from gpu_pool.server.adapters.shelf_folder import ShelfFolder

log = structlog.get_logger(__name__)
_T = TypeVar("_T")
PATIENCE_S: Final = 5.0
"""How long one question may take while others wait with streams of their own."""
_TURN: Final = 8
"""Questions after which the next in line carries: gateways see that each of them gets on."""


class FileFetch:
    """One file's."""

    def __init__(
        self,
        ref: AdapterRef,
        folder: ShelfFolder,
        disk: Executor,
        patience_s: float,
        *,
        is_there: bool,
    ) -> None:
        """Nothing is done before `carry`. `is_there`: a file of that name is to be compared first,
        which a former life has left.
        """
        self._digest = ref.weights_sha256
        self._num_bytes = ref.num_bytes
        self._folder = folder
        self._disk = disk
        self._patience_s = patience_s
        self.is_there = is_there
        """It still is to be compared."""
        self.turn: Final = asyncio.Lock()
        """Whoever has it carries; others stand in line."""
        self.num_waiting = 0
        """Requests that need the file, the one that carries it included."""
        self.is_complete = False
        """The file is in its place."""
        self._place = 0
        """Bytes that have been handed to the disk's thread, from the beginning."""
        self._file: int | None = None
        self._sum = hashlib.sha256()
        self._has_failed = False

    async def carry(self, line: PieceLine) -> None:
        """Gets the rest of the file over `line`; returns early where others wait and this one has
        had its turn, or is slow.

        Raises: `PoolSaturated` (no room on the disk), `AdapterUnsupported` (the bytes are not those
        of the file, though all of them came over this line).
        """
        if self.is_there and await self._do(self._compare):
            return
        first, num_asked = self._place, 0
        while True:
            while self._place < self._num_bytes:
                if num_asked == _TURN and self.num_waiting > 1:
                    return
                num_asked += 1
                if not await self._bring_next(line):
                    return
            if await self._do(self._finish):
                return
            self._place = 0
            self._raise_if_failed()
            if not first:
                log.error("adapter_digest_wrong", digest=self._digest.hex())
                raise AdapterUnsupported("The adapter's file is not what it was announced as.")
            # a part came over others' lines: all of it once more, over this one
            first, num_asked = 0, -self._num_bytes

    def give_up(self, *, keeps_former: bool) -> None:
        """Nobody needs the file any more; what a former life has left may stay."""
        self._disk.submit(self._discard)
        if not keeps_former:
            self._disk.submit(self._folder.remove, self._digest)

    async def _bring_next(self, line: PieceLine) -> bool:
        """The next bytes; False where they take too long and others wait."""
        first = self._place
        num_bytes = min(MAX_ASKED_BYTES, self._num_bytes - first)
        reading = asyncio.ensure_future(line.read(first, num_bytes))
        try:
            data = await self._wait_patiently(reading)
        finally:
            reading.cancel()
        if data is None:
            return False
        self._place += num_bytes
        await self._do(lambda: self._write(data))
        self._raise_if_failed()
        return True

    async def _wait_patiently(self, reading: "asyncio.Future[bytes]") -> bytes | None:
        """What is read; None when it has taken too long and somebody else could go on."""
        while True:
            done, _ = await asyncio.wait((reading,), timeout=self._patience_s)
            if done:
                return reading.result()
            if self.num_waiting > 1:
                log.info("adapter_stream_slow", digest=self._digest.hex())
                return None

    def _raise_if_failed(self) -> None:
        """Raises `PoolSaturated` when the disk has not taken what came; all begins anew then."""
        if self._has_failed:
            self._has_failed = False
            self._place = 0
            raise PoolSaturated("This node has no room for the adapter's file.")

    async def _do(self, work: Callable[[], _T]) -> _T:
        """What `work` gives, done by the disk's thread, also where nobody waits for it any more."""
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._disk, work))

    # -- the disk's thread; none of these raises -------------------------------------------------

    def _write(self, data: bytes) -> None:
        """Adds to the file, which the first bytes begin."""
        if self._has_failed:
            return
        try:
            if self._file is None:
                self._file = self._folder.begin(self._digest, self._num_bytes)
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError as error:
            log.error("adapter_not_written", reason=error.strerror or type(error).__name__)
            self._discard()
            self._has_failed = True
            return
        self._sum.update(data)

    def _finish(self) -> bool:
        """True when all that came is the file, which has its name then; else nothing is left."""
        if not self.is_complete and not self._has_failed:
            try:
                if self._sum.digest() == self._digest:
                    self._folder.settle(self._digest)
                    self.is_complete = True
            except OSError as error:
                log.error("adapter_not_kept", reason=error.strerror or type(error).__name__)
                self._has_failed = True
            self._discard()
        return self.is_complete

    def _compare(self) -> bool:
        """True when the file that is there is the right one; else it goes."""
        if self.is_there and self._folder.is_sound(self._digest):
            self.is_complete = True
        elif self.is_there:
            log.warning("adapter_changed_on_disk", digest=self._digest.hex())
            self._folder.remove(self._digest)
        self.is_there = False
        return self.is_complete

    def _discard(self) -> None:
        """Nothing that was begun is left; a file that has its name stays."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
            self._folder.give_up(self._digest)
        self._sum = hashlib.sha256()
