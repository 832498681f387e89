"""Tensors read by several threads ahead of whoever asks for them, straight into their own memory.

Owns the order and the bound on what is read ahead; must not know dtypes or families. Each tensor
gets memory of its own at the distance from a block's start that it has in its file, so that the
drive writes it in place. What is read ahead and not taken is at most `window_bytes`, or one tensor
where that is larger; as much may wait to be used again. Read next: `checkpoint`, the caller.
"""

import hashlib
import mmap
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from gpu_pool.load_progress import find_progress
from gpu_pool.weights.direct_file import BLOCK_BYTES, DirectFile
from gpu_pool.weights.header import TensorEntry
from gpu_pool.weights.spare_buffers import SpareBuffers

PIECE_BYTES: Final = 8 << 20
"""What one thread reads at once, and what one digest of a tensor's digests covers."""
NUM_THREADS: Final = 8
"""Reads that a drive is asked for at once."""
WINDOW_BYTES: Final = 128 << 20


@dataclass(frozen=True, slots=True)
class ReadTensor:
    """A tensor's bytes, which live as long as `view` does."""

    view: memoryview
    digest: str
    """Empty unless it was asked for."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """A tensor under way."""

    entry: TensorEntry
    buffer: mmap.mmap
    first: int
    """Where the tensor begins in `buffer`."""
    pieces: tuple[Future[bytes], ...]


class TensorStream:
    """Reads tensors of several files."""

    def __init__(
        self,
        find_file: Callable[[TensorEntry], DirectFile],
        *,
        hashes: bool,
        window_bytes: int = WINDOW_BYTES,
        num_threads: int = NUM_THREADS,
    ) -> None:
        """Starts threads. With `hashes`, each piece is hashed by the thread that has read it."""
        self._find_file = find_file
        self._hashes = hashes
        self._window_bytes = window_bytes
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="weights")
        self._expected: deque[TensorEntry] = deque()
        self._ahead: dict[str, _Reading] = {}
        self._num_ahead_bytes = 0
        self._buffers = SpareBuffers(window_bytes)
        self._taken: set[str] = set()

    def expect(self, entries: Iterable[TensorEntry]) -> None:
        """Says what will be asked for, in order; a wrong guess costs time and nothing else."""
        added = tuple(entries)
        find_progress().expect(sum(entry.num_bytes for entry in added))
        self._expected.extend(added)
        self._read_ahead()

    def read(self, entry: TensorEntry) -> ReadTensor:
        """The tensor. Raises: `CheckpointError` when its file has been cut or cannot be read."""
        reading = self._ahead.pop(entry.name, None)
        if reading is None:
            reading = self._start(entry)
        else:
            self._num_ahead_bytes -= entry.num_bytes
        self._taken.add(entry.name)
        self._read_ahead()
        digests = list(_await_pieces(reading))
        view = self._buffers.lend(reading.buffer, reading.first, reading.first + entry.num_bytes)
        digest = hashlib.sha256(b"".join(digests)).hexdigest() if self._hashes else ""
        return ReadTensor(view, digest)

    def close(self) -> None:
        """Ends the threads; tensors that were read stay."""
        self._pool.shutdown(cancel_futures=True)
        self._ahead.clear()
        self._buffers.close()

    def _read_ahead(self) -> None:
        """Starts what is expected next, as far as the window goes."""
        while self._expected and self._num_ahead_bytes < self._window_bytes:
            entry = self._expected[0]
            is_over = self._num_ahead_bytes + entry.num_bytes > self._window_bytes
            if is_over and self._num_ahead_bytes:
                return
            self._expected.popleft()
            if entry.name not in self._taken and entry.name not in self._ahead:
                self._ahead[entry.name] = self._start(entry)
                self._num_ahead_bytes += entry.num_bytes

    def _start(self, entry: TensorEntry) -> _Reading:
        """Gets memory and asks for all pieces."""
        first = entry.offset % BLOCK_BYTES
        num_blocks = -(-(first + entry.num_bytes) // BLOCK_BYTES)
        buffer = self._buffers.take(num_blocks * BLOCK_BYTES)
        file = self._find_file(entry)
        pieces = [
            self._pool.submit(self._read_piece, file, buffer, entry, start)
            for start in range(0, entry.num_bytes, PIECE_BYTES)
        ]
        return _Reading(entry, buffer, first, tuple(pieces))

    def _read_piece(
        self, file: DirectFile, buffer: mmap.mmap, entry: TensorEntry, start: int
    ) -> bytes:
        """Reads the blocks that a piece touches; its digest, if wanted.

        Neighbours may read one block twice: the same bytes to the same place.
        """
        origin = entry.offset - entry.offset % BLOCK_BYTES
        begin = entry.offset + start
        end = min(begin + PIECE_BYTES, entry.offset + entry.num_bytes)
        first = (begin - origin) // BLOCK_BYTES * BLOCK_BYTES
        last = -(-(end - origin) // BLOCK_BYTES) * BLOCK_BYTES
        with memoryview(buffer) as whole:
            with whole[first:last] as blocks:
                file.read_into(blocks, origin + first)
            if not self._hashes:
                return b""
            with whole[begin - origin : end - origin] as piece:
                return hashlib.sha256(piece).digest()


def _await_pieces(reading: _Reading) -> Iterator[bytes]:
    """The digests of all pieces, each as soon as it is there."""
    progress, num_left = find_progress(), reading.entry.num_bytes
    for piece in reading.pieces:
        digest = piece.result()
        progress.advance(min(PIECE_BYTES, num_left))
        num_left -= PIECE_BYTES
        yield digest
