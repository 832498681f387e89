"""A model's weights in the form that it computes with, in one file that is mapped and not copied.

The entries' bytes come first, each at a whole page, then the contents in JSON, then a short ending
that says where these begin. Of every piece of 8 MiB the contents have a digest, and whoever opens
the file compares them all: what was torn, cut or flipped is no copy. They guard against faults;
against an enemy the folder does, which nobody but its owner may write.
Must not know tensors or families. Read next: `packed_copy` (whose copy it is), `packed_writing`.
"""

import mmap
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
import xxhash

COPY_FILE: Final = "hearth-packed.weights"
UNFINISHED_FILE: Final = f".{COPY_FILE}.unfinished"
"""What it is called until it is whole."""
_MAGIC: Final = b"hearth packed 1\n"
_ALIGNMENT: Final = 4096
_PIECE_BYTES: Final = 8 << 20
"""Written at once, so that the page cache takes large pages for it, and compared by one thread."""
_NUM_BYTES: Final = 8
_MAX_CONTENTS_BYTES: Final = 64 << 20


class View(msgspec.Struct, frozen=True, array_like=True):
    """What of a parameter was packed: the part of its memory that a matrix is."""

    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor. Units: bytes."""

    parameter: str
    shape: tuple[int, ...]
    """Of the parameter."""
    view: View | None
    """None: the parameter itself, as it is."""
    num_bytes: int
    start: int = 0
    group_size: int = 0
    """Inputs that share a factor, of a parameter of four bits; its shape is of pairs of numbers."""


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """What a copy holds, and of what."""

    origin: str
    """What it was made of, and by what: another origin is another copy."""
    revision: str
    """Of the checkpoint."""
    entries: tuple[Entry, ...]
    digests: tuple[str, ...]
    """Of every piece."""


class PackedFile:
    """An open copy whose digests have been compared. Its memory lives as long as this does."""

    def __init__(self, contents: Contents, memory: mmap.mmap) -> None:
        """Takes what `open_copy` has found."""
        self.contents = contents
        self.memory = memory


def lay_out(entries: Sequence[Entry]) -> tuple[tuple[Entry, ...], int]:
    """The entries, each where it starts; the bytes of all in the end."""
    placed: list[Entry] = []
    start = 0
    for entry in entries:
        placed.append(msgspec.structs.replace(entry, start=start))
        start += _pad(entry.num_bytes)
    return tuple(placed), start


def write_pieces(
    file: int, memories: Sequence[memoryview], in_turn: Callable[[Callable[[], str]], str]
) -> tuple[str, ...]:
    """Writes all memories as `lay_out` has placed them; returns the digest of every piece.

    `in_turn` calls what writes one piece, or raises to end it all. Raises: `OSError`.
    """
    digests: list[str] = []
    for number, parts in enumerate(_cut(memories)):
        digests.append(in_turn(lambda parts=parts, number=number: _write(file, parts, number)))
    return tuple(digests)


def write_contents(file: int, start: int, contents: Contents) -> None:
    """Ends a file whose pieces end at `start`. Raises: `OSError`."""
    encoded = msgspec.json.encode(contents)
    digest = xxhash.xxh3_128(encoded).digest()
    ending = digest + len(encoded).to_bytes(_NUM_BYTES, "little") + _MAGIC
    written = os.pwrite(file, encoded + ending, start)
    if written != len(encoded) + len(ending):
        raise OSError("the contents were not written whole")


def open_copy(path: Path, origin: str, num_threads: int) -> PackedFile | None:
    """The copy at `path`; None where there is none of this origin that is whole and trusted."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        if not is_own(file, path.parent):
            return None
        found = _read_contents(file)
        if found is None or found[0].origin != origin or not found[1]:
            return None
        contents, num_bytes = found
        memory = mmap.mmap(
            file, num_bytes, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE
        )
    except OSError:
        return None
    finally:
        os.close(file)
    with suppress(OSError, AttributeError):  # not every system and kernel has large pages
        memory.madvise(mmap.MADV_HUGEPAGE)  # read from the drive, it comes in these as well
    if not _is_sound(memory, contents.digests, num_threads):
        return None
    memory.madvise(mmap.MADV_DONTNEED)  # only what is computed with counts as this process's
    return PackedFile(contents, memory)


def is_own(file: int, folder: Path | int) -> bool:
    """True when nobody but this user or root can write the open file, or put another in its place.

    Raises: `OSError`.
    """
    return all(
        status.st_uid in (0, os.geteuid()) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        for status in (os.fstat(file), os.stat(folder))
    )


def _read_contents(file: int) -> tuple[Contents, int] | None:
    """The contents and where they begin; None where the file has no sound ones."""
    size = os.fstat(file).st_size
    digest_bytes = xxhash.xxh3_128().digest_size
    ending_bytes = digest_bytes + _NUM_BYTES + len(_MAGIC)
    ending = os.pread(file, ending_bytes, max(0, size - ending_bytes))
    if len(ending) != ending_bytes or not ending.endswith(_MAGIC):
        return None
    length = int.from_bytes(ending[digest_bytes : digest_bytes + _NUM_BYTES], "little")
    start = size - ending_bytes - length
    if start < 0 or length > _MAX_CONTENTS_BYTES:
        return None
    encoded = os.pread(file, length, start)
    if xxhash.xxh3_128(encoded).digest() != ending[:digest_bytes]:
        return None
    try:
        contents = msgspec.json.decode(encoded, type=Contents)
    except msgspec.MsgspecError:
        return None
    is_inside = all(0 <= entry.start <= start - entry.num_bytes for entry in contents.entries)
    return (contents, start) if is_inside else None


def _is_sound(memory: mmap.mmap, digests: Sequence[str], num_threads: int) -> bool:
    """True when every piece has its digest."""
    starts = range(0, len(memory), _PIECE_BYTES)
    if len(starts) != len(digests):
        return False

    def is_right(start: int, digest: str) -> bool:
        with memoryview(memory) as whole, whole[start : start + _PIECE_BYTES] as piece:
            return xxhash.xxh3_128(piece).hexdigest() == digest

    with ThreadPoolExecutor(num_threads, "packed") as pool:
        return all(pool.map(is_right, starts, digests))


def _cut(memories: Sequence[memoryview]) -> Iterator[list[memoryview]]:
    """All memories, each filled up to a whole page, in pieces."""
    parts: list[memoryview] = []
    room = _PIECE_BYTES
    for memory in memories:
        filling = memoryview(bytes(_pad(len(memory)) - len(memory)))
        for part in (memory, filling):
            rest = part
            while len(rest):
                parts.append(rest[:room])
                room -= len(parts[-1])
                rest = rest[len(parts[-1]) :]
                if not room:
                    yield parts
                    parts, room = [], _PIECE_BYTES
    if parts:
        yield parts


def _write(file: int, parts: list[memoryview], number: int) -> str:
    """Writes one piece; its digest."""
    digest = xxhash.xxh3_128()
    for part in parts:
        digest.update(part)
    offset = number * _PIECE_BYTES
    for first in range(0, len(parts), os.sysconf("SC_IOV_MAX")):
        some = parts[first : first + os.sysconf("SC_IOV_MAX")]
        num_bytes = sum(len(part) for part in some)
        if os.pwritev(file, some, offset) != num_bytes:
            raise OSError("a piece was not written whole")
        offset += num_bytes
    return digest.hexdigest()


def _pad(num_bytes: int) -> int:
    """The same in whole pages."""
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
