"""The header of an `adapter_model.safetensors`: which tensors it names, and whether that is sound.

Pure, and no tensor is looked at. An adapter is pairs of matrices, A [rank, in] and B [out, rank],
all of one rank, that fill the file without a gap. Source: the format's description (safetensors),
PEFT's names. Read next: `gateway.finetunes.weights_intake`.
"""

import re
import struct
from typing import Annotated, Final

import msgspec

from contracts.errors import InvalidRequest

WEIGHTS_FILE: Final = "adapter_model.safetensors"
LENGTH_BYTES: Final = 8
MAX_HEADER_BYTES: Final = 1024 * 1024
_DTYPE_BYTES: Final = {"F32": 4, "F16": 2, "BF16": 2}
_NAME: Final = re.compile(r"base_model\.model\.(.+)\.lora_([AB])(?:\.default)?\.weight")
_MAX_SHOWN: Final = 200
_Number = Annotated[int, msgspec.Meta(ge=0, lt=2**40)]


class _Tensor(msgspec.Struct, frozen=True):
    """What the header says of one."""

    dtype: str
    shape: Annotated[tuple[_Number, ...], msgspec.Meta(max_length=8)]
    data_offsets: tuple[_Number, _Number]


class WeightsHeader(msgspec.Struct, frozen=True):
    """What a sound header comes to."""

    rank: int
    num_bytes: int
    """Of the whole file, this header included."""


_entries_decoder: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_tensor_decoder: Final = msgspec.json.Decoder(_Tensor)
_metadata_decoder: Final = msgspec.json.Decoder(dict[str, str])


def read_header_length(beginning: bytes | bytearray) -> int:
    """Bytes of the header, from the first eight of the file. Raises: `InvalidRequest`."""
    if len(beginning) < LENGTH_BYTES:
        raise _refuse("is too short to be a safetensors file")
    (length,) = struct.unpack_from("<Q", beginning)
    if not 2 <= length <= MAX_HEADER_BYTES:
        raise _refuse(
            f"begins with a header of {length} bytes, where at most {MAX_HEADER_BYTES} are read: "
            "it is no safetensors file"
        )
    return int(length)


def read_weights_header(header: bytes, max_rank: int) -> WeightsHeader:
    """What the header comes to. Raises: `InvalidRequest`, naming the tensor."""
    tensors = _decode(header)
    ranks: dict[str, dict[str, int]] = {}
    for name, tensor in tensors.items():
        match = _NAME.fullmatch(name)
        if match is None:
            raise _refuse_tensor(
                name, "is none that LoRA has: names end in `.lora_A.weight` or `.lora_B.weight`"
            )
        halves, half = ranks.setdefault(match[1], {}), match[2]
        if half in halves:
            raise _refuse_tensor(name, "is there under two names")
        halves[half] = _find_rank(name, tensor, half)
    for module, halves in ranks.items():
        if len(halves) != len("AB"):
            (half,) = halves
            raise _refuse_tensor(f"{module}.lora_{half}", "is there without its other half")
        if halves["A"] != halves["B"]:
            raise _refuse_tensor(f"{module}.lora_A", "and its lora_B have different ranks")
    found = {halves["A"]: module for module, halves in ranks.items()}
    if not found:
        raise _refuse("names no tensors")
    if len(found) > 1:
        first, second, *_ = found.items()
        raise _refuse_tensor(
            f"{second[1]}.lora_A",
            f"has rank {second[0]} and {_shorten(first[1])} has {first[0]}: all have the same",
        )
    (rank,) = found
    if not 1 <= rank <= max_rank:
        raise _refuse(f"has matrices of rank {rank}, where 1 to {max_rank} are computed")
    return WeightsHeader(rank, LENGTH_BYTES + len(header) + _measure(tensors))


def _decode(header: bytes) -> dict[str, _Tensor]:
    """The tensors by name. Raises: `InvalidRequest`."""
    try:
        entries = _entries_decoder.decode(header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _refuse(f"has a header that is no JSON object: {error}") from None
    metadata = entries.pop("__metadata__", None)
    tensors: dict[str, _Tensor] = {}
    name = "__metadata__"
    try:
        if metadata is not None:
            _metadata_decoder.decode(metadata)
        for name, entry in entries.items():
            tensors[name] = _tensor_decoder.decode(entry)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _refuse_tensor(name, f"is not described as safetensors does: {error}") from None
    return tensors


def _find_rank(name: str, tensor: _Tensor, half: str) -> int:
    """The rank of a matrix that is sound by itself. Raises: `InvalidRequest`."""
    size = _DTYPE_BYTES.get(tensor.dtype)
    if size is None:
        raise _refuse_tensor(
            name, f"has dtype {_shorten(tensor.dtype)}: {', '.join(_DTYPE_BYTES)} are computed"
        )
    if len(tensor.shape) != 2 or 0 in tensor.shape:
        raise _refuse_tensor(name, f"has shape {list(tensor.shape)}: it must be a matrix")
    rows, columns = tensor.shape
    begin, end = tensor.data_offsets
    if end - begin != rows * columns * size:
        raise _refuse_tensor(
            name, f"has {end - begin} bytes, and its shape {rows * columns * size}"
        )
    return rows if half == "A" else columns


def _measure(tensors: dict[str, _Tensor]) -> int:
    """Bytes of all tensors, which lie one behind the other. Raises: `InvalidRequest`."""
    at = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].data_offsets):
        begin, end = tensor.data_offsets
        if begin != at:
            raise _refuse_tensor(
                name, f"begins at byte {begin}, where the one before it ends at {at}"
            )
        at = end
    return at


def _refuse(reason: str) -> InvalidRequest:
    return InvalidRequest(f"{WEIGHTS_FILE} {reason}.", param="file")


def _refuse_tensor(name: str, reason: str) -> InvalidRequest:
    return _refuse(f"has a tensor that is not taken: {_shorten(name)} {reason}")


def _shorten(name: str) -> str:
    """A name from the file as an error may show it."""
    shown = name if len(name) <= _MAX_SHOWN else name[:_MAX_SHOWN] + "…"
    return f"`{shown}`" if shown.isprintable() else repr(shown)
