"""Weights as they come in: checked from their first bytes on, cut into pieces, put into the store.

Owns one upload from its first byte to its last, and holds little more than a piece of it, and
the header until that is whole. Must not know the form that the bytes came in. Read next:
`gateway.finetunes.weights_header`, `tenancy.finetunes.uploads`.
"""

import asyncio
import hashlib

from contracts.errors import InvalidRequest, PayloadTooLarge
from contracts.finetunes import PIECE_BYTES, Finetune, FinetuneUpload, StoredWeights
from gateway.finetunes.weights_header import (
    LENGTH_BYTES,
    WEIGHTS_FILE,
    WeightsHeader,
    read_header_length,
    read_weights_header,
)
from tenancy.finetunes.interface import FinetuneAdministration


class WeightsIntake:
    """Takes in the weights of one finetune."""

    def __init__(
        self,
        store: FinetuneAdministration,
        finetune: Finetune,
        max_bytes: int,
        max_rank: int,
        lease_ms: int,
    ) -> None:
        """Nothing has come yet. A piece must come within each lease."""
        self._store = store
        self._finetune = finetune
        self._max_bytes = max_bytes
        self._max_rank = max_rank
        self._lease_ms = lease_ms
        self._upload: FinetuneUpload | None = None
        self._piece = bytearray()
        self._num_pieces = 0
        self._num_bytes = 0
        self._digest = hashlib.sha256()
        self._beginning = bytearray()
        self._header: WeightsHeader | None = None

    async def add(self, data: bytes) -> None:
        """Takes the next bytes of the file, of which what makes a piece is stored.

        Raises: `InvalidRequest`, `PayloadTooLarge`, and what the store raises.
        """
        self._num_bytes += len(data)
        if self._num_bytes > self._max_bytes:
            raise PayloadTooLarge(f"{WEIGHTS_FILE} is larger than {self._max_bytes} bytes.")
        if self._header is None:
            self._beginning += data
            await self._look_at_beginning()
        if self._header is not None and self._num_bytes > self._header.num_bytes:
            raise InvalidRequest(
                f"{WEIGHTS_FILE} is longer than the {self._header.num_bytes} bytes that its header "
                "tells.",
                param="file",
            )
        self._piece += data
        # Nothing is stored of a file whose header is not known to be sound.
        while self._header is not None and len(self._piece) >= PIECE_BYTES:
            await self._put(bytes(self._piece[:PIECE_BYTES]))
            del self._piece[:PIECE_BYTES]

    async def finish(self) -> Finetune:
        """The finetune with these weights. Raises: the same."""
        if self._header is None or self._num_bytes != self._header.num_bytes:
            told = "" if self._header is None else f" of the {self._header.num_bytes} that it tells"
            raise InvalidRequest(
                f"{WEIGHTS_FILE} ends after {self._num_bytes} bytes{told}: it is not whole.",
                param="file",
            )
        if self._piece:
            await self._put(bytes(self._piece))
            self._piece.clear()
        assert self._upload is not None
        weights = StoredWeights(
            sha256=self._digest.digest(), num_bytes=self._num_bytes, rank=self._header.rank
        )
        finetune = await self._store.finish_finetune_upload(self._upload, weights)
        self._upload = None
        return finetune

    async def abandon(self) -> None:
        """Gives up what has been stored, if the upload was not finished. Raises:
        `StoreUnavailable`; then its lease ends instead.
        """
        upload, self._upload = self._upload, None
        if upload is not None:
            await self._store.abandon_finetune_upload(upload)

    async def _look_at_beginning(self) -> None:
        """Reads the header once it is whole. Raises: `InvalidRequest`."""
        if len(self._beginning) < LENGTH_BYTES:
            return
        end = LENGTH_BYTES + read_header_length(self._beginning)
        if len(self._beginning) >= end:
            header = bytes(self._beginning[LENGTH_BYTES:end])
            # It may name thousands of tensors: others' answers go on meanwhile.
            self._header = await asyncio.to_thread(read_weights_header, header, self._max_rank)
            if self._header.num_bytes > self._max_bytes:
                raise PayloadTooLarge(f"{WEIGHTS_FILE} is larger than {self._max_bytes} bytes.")
            self._beginning.clear()

    async def _put(self, piece: bytes) -> None:
        """Stores the next piece; with the first one the upload begins."""
        if self._upload is None:
            self._upload = await self._store.begin_finetune_upload(
                self._finetune.account_id, self._finetune.finetune_id, self._lease_ms
            )
        await asyncio.to_thread(self._digest.update, piece)
        await self._store.put_finetune_piece(self._upload, self._num_pieces, piece, self._lease_ms)
        self._num_pieces += 1
