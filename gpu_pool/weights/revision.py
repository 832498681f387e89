"""The digest of a checkpoint: same revision, same weights, whatever the folder is called.

SHA-256 over `config.json` and every tensor file, headers and data. Files are hashed in pieces of
64 MiB by several threads (hashlib lets go of the interpreter's lock), each piece's digest going
into the whole in order: about 1 s per 3 GB on two cores with SHA instructions, memory permitting.
Nothing is remembered on disk, so a file that was swapped under the same name and time still shows.
"""

import hashlib
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

from gpu_pool.load_progress import find_progress

_PIECE_BYTES: Final = 64 << 20
_READ_BYTES: Final = 256 << 10
"""Into the same memory each time, which the nearer caches hold."""


class RevisionUnderWay:
    """The digest over names, sizes and contents of files, in order of name, while they are read."""

    def __init__(self, files: Iterable[Path], num_threads: int) -> None:
        """Begins, with so many threads. Raises: `OSError`."""
        sizes = [(path, path.stat().st_size) for path in sorted(files, key=lambda path: path.name)]
        self._pool = ThreadPoolExecutor(num_threads, "revision")
        self._whole = hashlib.sha256(b"hearth checkpoint 1\0")
        self._files: list[tuple[bytes, list[Future[bytes]]]] = []
        for path, size in sizes:
            starts = range(0, size, _PIECE_BYTES)
            pieces = [self._pool.submit(_hash_piece, path, start) for start in starts]
            self._files.append((f"{path.name}\0{size}\0".encode(), pieces))

    def finish(self) -> str:
        """Hexadecimal, when all has been read; once. What fails, or is interrupted, ends it.

        Raises: `OSError`.
        """
        progress = find_progress()
        try:
            for words, pieces in self._files:
                self._whole.update(words)
                for piece in pieces:
                    self._whole.update(piece.result())
                    progress.advance(0)
        finally:
            self.abandon()
        return self._whole.hexdigest()

    def abandon(self) -> None:
        """Nobody asks for it any more; no further piece is begun."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def compute_revision(files: Iterable[Path], num_threads: int) -> str:
    """Hexadecimal digest over names, sizes and contents of `files`, in order of name."""
    return RevisionUnderWay(files, num_threads).finish()


def _hash_piece(path: Path, start: int) -> bytes:
    """SHA-256 of one piece."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file, memoryview(bytearray(_READ_BYTES)) as memory:
        file.seek(start)
        left = _PIECE_BYTES
        while left and (num_bytes := file.readinto(memory[: min(_READ_BYTES, left)])):
            digest.update(memory[:num_bytes])
            left -= num_bytes
    return digest.digest()
