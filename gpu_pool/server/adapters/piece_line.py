"""One stream's way to the bytes of its request's adapter: a question, then its answer in pieces.

Owns what a gateway may send and when: only what was asked for, in order, no piece larger than a
fragment. Must not know files. Read next: `file_fetch` (who asks), `contracts.adapters`.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from contracts.adapters import AdapterPiece, AdapterWanted
from contracts.errors import InvalidRequest
from contracts.wire import FRAGMENT_BYTES

UNASKED: Final = "A piece of an adapter came that was not asked for."


class PieceLine:
    """The line of one stream; one reader at a time."""

    __slots__ = ("_ask", "_is_kept", "_num_missing", "_place", "_received", "_waiter")

    def __init__(self, ask: Callable[[AdapterWanted], None]) -> None:
        """`ask` sends a question on the stream."""
        self._ask = ask
        self._place = 0
        """Where the next piece has to begin."""
        self._num_missing = 0
        """Bytes that were asked for and have not come."""
        self._received: list[bytes] = []
        self._is_kept = False
        """Somebody waits for what comes."""
        self._waiter: asyncio.Future[None] | None = None

    async def read(self, first: int, num_bytes: int) -> bytes:
        """Exactly these bytes of the file. What is left of an answer that nobody waited for to its
        end comes first, and is dropped.
        """
        await self._wait()
        self._place, self._num_missing = first, num_bytes
        self._is_kept = True
        try:
            self._ask(AdapterWanted(first, num_bytes))
            await self._wait()
            return b"".join(self._received)
        finally:
            self._is_kept = False
            self._received.clear()

    def take(self, piece: AdapterPiece) -> None:
        """A piece has come. Raises: `InvalidRequest` for one that was not to come next."""
        num_bytes = len(piece.data)
        if not self._num_missing:
            raise InvalidRequest(UNASKED)
        if piece.first != self._place or not 0 < num_bytes <= self._num_missing:
            raise InvalidRequest("A piece of an adapter is not the one that was to come next.")
        if num_bytes > FRAGMENT_BYTES:
            raise InvalidRequest(f"A piece of an adapter is larger than {FRAGMENT_BYTES} bytes.")
        self._place += num_bytes
        self._num_missing -= num_bytes
        if self._is_kept:
            self._received.append(piece.data)
        if not self._num_missing and self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait(self) -> None:
        """Returns when nothing is missing."""
        if self._num_missing:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
