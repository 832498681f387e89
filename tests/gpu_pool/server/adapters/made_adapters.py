"""Adapters' files for tests of the shelf, and lines over which they come."""

import asyncio
import hashlib
import random
from collections.abc import Callable

from contracts.adapters import AdapterPiece, AdapterRef, AdapterWanted
from contracts.wire import FRAGMENT_BYTES
from gpu_pool.server.adapters.piece_line import PieceLine


def make_file(num_bytes: int, seed: int = 0) -> bytes:
    """So many bytes."""
    return random.Random(seed).randbytes(num_bytes)


def make_ref(content: bytes, scale: float = 2.0, rank: int = 8) -> AdapterRef:
    """What a gateway says of a file."""
    return AdapterRef(
        weights_sha256=hashlib.sha256(content).digest(),
        num_bytes=len(content),
        scale=scale,
        rank=rank,
    )


class Feeder:
    """A gateway's end of one line: answers from a file, unless it is told otherwise."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.wanted: list[AdapterWanted] = []
        self.is_silent = False
        """It hears, and says nothing."""
        self.stops_after: int | None = None
        """It falls silent after so many questions."""
        self.change: Callable[[AdapterPiece], AdapterPiece] = lambda piece: piece
        self.line = PieceLine(self._hear)

    @property
    def num_asked(self) -> int:
        """Bytes."""
        return sum(wanted.num_bytes for wanted in self.wanted)

    def answer(self, wanted: AdapterWanted) -> None:
        """Sends what was asked for."""
        end = wanted.first + wanted.num_bytes
        for first in range(wanted.first, end, FRAGMENT_BYTES):
            data = self.content[first : min(first + FRAGMENT_BYTES, end)]
            self.line.take(self.change(AdapterPiece(first, data)))

    def _hear(self, wanted: AdapterWanted) -> None:
        self.wanted.append(wanted)
        is_over = self.stops_after is not None and len(self.wanted) > self.stops_after
        if not self.is_silent and not is_over:
            asyncio.get_running_loop().call_soon(self.answer, wanted)
