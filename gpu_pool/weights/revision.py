"""The digest of a checkpoint: same revision, same weights, whatever the folder is called.

SHA-256 over `config.json` and every tensor file, headers and data. Files are hashed in pieces of
64 MiB by several threads (hashlib lets go of the interpreter's lock), each piece's digest going
into the whole in order: about 1 s per 3 GB on two cores with SHA instructions, memory permitting.
Nothing is remembered on disk, so a file that was swapped under the same name and time still shows.
"""

import hashlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from gpu_pool.load_progress import find_progress

_PIECE_BYTES: Final = 64 << 20
_READ_BYTES: Final = 1 << 20


def compute_revision(files: Iterable[Path], num_threads: int) -> str:
    """Hexadecimal digest over names, sizes and contents of `files`, in order of name."""
    ordered = sorted(files, key=lambda path: path.name)
    whole = hashlib.sha256(b"hearth checkpoint 1\0")
    progress = find_progress()
    with ThreadPoolExecutor(num_threads) as pool:
        for path in ordered:
            size = path.stat().st_size
            whole.update(f"{path.name}\0{size}\0".encode())
            starts = range(0, size, _PIECE_BYTES)
            for digest in pool.map(_hash_piece, [path] * len(starts), starts):
                whole.update(digest)
                progress.advance(0)
    return whole.hexdigest()


def _hash_piece(path: Path, start: int) -> bytes:
    """SHA-256 of one piece."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        file.seek(start)
        left = _PIECE_BYTES
        while left and (data := file.read(min(_READ_BYTES, left))):
            digest.update(data)
            left -= len(data)
    return digest.digest()
