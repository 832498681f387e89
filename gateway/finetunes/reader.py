"""Reads adapters' files out of the store, for nodes that lack them.

Owns the few pieces that are held in memory: nodes ask for less than a piece at a time, several of
them for the same, and a piece has to be decrypted whole. Must not know who owns an adapter, nor who
asks. Read next: `tenancy.finetunes.lookup`.
"""

import asyncio
from typing import Final

from contracts.adapters import AdapterRef
from contracts.errors import InvariantBroken, NotFound
from contracts.finetunes import PIECE_BYTES
from tenancy.finetunes.interface import FinetuneDirectory

MAX_HELD_PIECES: Final = 16
"""Megabytes."""
MAX_CONCURRENT_READS: Final = 4
_Key = tuple[bytes, int]


class FinetuneReader:
    """Reads ranges; an `AdapterReader`."""

    def __init__(self, directory: FinetuneDirectory) -> None:
        """Have `forget` called with each of the store's epochs."""
        self._directory = directory
        self._pieces: dict[_Key, bytes] = {}
        self._reads: dict[_Key, asyncio.Task[bytes]] = {}
        self._places = asyncio.Semaphore(MAX_CONCURRENT_READS)
        self._generation = 0

    async def read(self, ref: AdapterRef, first: int, num_bytes: int) -> bytes:
        """Exactly those bytes of the file.

        Raises: `NotFound` when it is gone, `StoreUnavailable`, `InvariantBroken` for bytes that it
        has not.
        """
        end = first + num_bytes
        if first < 0 or num_bytes < 0 or end > ref.num_bytes:
            raise InvariantBroken("Bytes were asked for that the adapter's file has not.")
        data = bytearray()
        while first < end:
            index, at = divmod(first, PIECE_BYTES)
            piece = await self._find(ref, index)
            data += piece[at : at + end - first]
            first = (index + 1) * PIECE_BYTES
        return bytes(data)

    async def forget(self) -> None:
        """Something has changed in the store: what was deleted is read no more."""
        self._generation += 1
        self._pieces.clear()
        self._reads.clear()

    async def _find(self, ref: AdapterRef, index: int) -> bytes:
        """A piece, from memory or by the store, once for all who wait for it."""
        key = (ref.weights_sha256, index)
        piece = self._pieces.pop(key, None)
        if piece is not None:
            self._pieces[key] = piece  # the latest that was used
            return piece
        task = self._reads.get(key)
        if task is None:
            task = asyncio.create_task(self._load(ref, index, self._generation))
            self._reads[key] = task
        # Shielded: a stream that ends must not fail the others.
        return await asyncio.shield(task)

    async def _load(self, ref: AdapterRef, index: int, generation: int) -> bytes:
        key = (ref.weights_sha256, index)
        try:
            async with self._places:
                piece = await self._directory.read_finetune_piece(*key)
        finally:
            if self._generation == generation:
                self._reads.pop(key, None)
        if piece is None:
            raise NotFound("The finetune has been deleted.", param="lora")
        if len(piece) != min(PIECE_BYTES, ref.num_bytes - index * PIECE_BYTES):
            raise InvariantBroken("A piece of an adapter's file has not the length that it had.")
        if self._generation == generation:
            self._pieces[key] = piece
            if len(self._pieces) > MAX_HELD_PIECES:
                del self._pieces[next(iter(self._pieces))]
        return piece
