"""The header of a safetensors file: which tensor lies where, checked before any data is touched.

Refuses what does not account for every byte once: overlaps, holes, offsets beyond the end, sizes
that fit neither shape nor dtype. Must not know what tensors are for. Source: the format's own
description in the safetensors project. Read next: `checkpoint`.
"""

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Final

import msgspec

from gpu_pool.models.errors import CheckpointError

_LENGTH: Final = struct.Struct("<Q")
_MAX_HEADER_BYTES: Final = 100_000_000
"""More is refused by the format's own library, too."""
_MAX_DIMENSIONS: Final = 32
_METADATA: Final = "__metadata__"
ITEM_BYTES: Final[Mapping[str, int]] = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"), 1),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 2),
    **dict.fromkeys(("I32", "U32", "F32"), 4),
    **dict.fromkeys(("I64", "U64", "F64"), 8),
}
"""Bytes of an element by dtype, in safetensors' words."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where a tensor lies. Units: `offset` in bytes from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class FileHeader:
    """All tensors of a file, by name, and what the file was when they were listed."""

    num_bytes: int
    """Of the whole file."""
    digest: str
    """SHA-256 of the header's bytes, its length included."""
    tensors: Mapping[str, TensorEntry]


class _EntryJson(msgspec.Struct, frozen=True):
    """A tensor as the header has it."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def read_header(path: Path, max_header_bytes: int = _MAX_HEADER_BYTES) -> FileHeader:
    """The header of the file at `path`. Raises: `CheckpointError` saying what is wrong with it."""
    try:
        num_bytes = path.stat().st_size
        with path.open("rb") as file:
            prefix = file.read(_LENGTH.size)
            if len(prefix) < _LENGTH.size:
                raise CheckpointError(f"{path}: the file ends inside its header.")
            (length,) = _LENGTH.unpack(prefix)
            if length > max_header_bytes:
                raise CheckpointError(f"{path}: a header of {length} bytes is too large.")
            if _LENGTH.size + length > num_bytes:
                raise CheckpointError(f"{path}: the file ends inside its header.")
            content = file.read(length)
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}.") from error
    start = _LENGTH.size + length
    tensors = _parse(path, content, start)
    _check_layout(path, tensors, start, num_bytes)
    digest = hashlib.sha256(prefix + content).hexdigest()
    return FileHeader(num_bytes, digest, {entry.name: entry for entry in tensors})


def _parse(path: Path, content: bytes, start: int) -> list[TensorEntry]:
    """All entries; data begins at byte `start`."""
    try:
        fields = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
        metadata = fields.pop(_METADATA, None)
        if metadata is not None:  # for people; of no use here, and checked all the same
            msgspec.json.decode(metadata, type=dict[str, str] | None)
        items = {name: msgspec.json.decode(raw, type=_EntryJson) for name, raw in fields.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"{path}: the header is malformed: {error}.") from error
    return [_to_entry(path, name, item, start) for name, item in items.items()]


def _to_entry(path: Path, name: str, item: _EntryJson, start: int) -> TensorEntry:
    """A tensor whose size fits its shape and dtype."""
    if item.dtype not in ITEM_BYTES:
        raise CheckpointError(f"{path}: tensor `{name}` is of unknown dtype `{item.dtype}`.")
    if len(item.shape) > _MAX_DIMENSIONS or any(size < 0 for size in item.shape):
        raise CheckpointError(f"{path}: tensor `{name}` has no shape: {list(item.shape)}.")
    first, end = item.data_offsets
    expected = prod(item.shape) * ITEM_BYTES[item.dtype]
    if first < 0 or end - first != expected:
        raise CheckpointError(
            f"{path}: tensor `{name}` takes {expected} bytes and has offsets {first} to {end}."
        )
    return TensorEntry(name, item.dtype, item.shape, start + first, expected)


def _check_layout(path: Path, tensors: list[TensorEntry], start: int, num_bytes: int) -> None:
    """Raises unless the tensors lie one behind the other up to the end of the file."""
    end, last = start, ""
    for entry in sorted(tensors, key=lambda entry: (entry.offset, entry.num_bytes)):
        if entry.offset < end:
            raise CheckpointError(f"{path}: tensors `{last}` and `{entry.name}` overlap.")
        if entry.offset > end:
            raise CheckpointError(f"{path}: there is a hole before tensor `{entry.name}`.")
        end, last = entry.offset + entry.num_bytes, entry.name
    if end > num_bytes:
        raise CheckpointError(
            f"{path}: the file is cut: it has {num_bytes} bytes, its tensors end at {end}."
        )
    if end < num_bytes:
        raise CheckpointError(f"{path}: {num_bytes - end} bytes are left over behind the tensors.")
