"""What is kept of a batch's item: its question, and its answer.

These are the bytes that tenancy encrypts. Later versions add fields at the end, with defaults.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from contracts.errors import ServiceError
from contracts.inference import Usage
from gateway.errors import find_row
from gateway.routing.wishes import JURISDICTIONS_HEADER, REGIONS_HEADER, read_wishes

Header = tuple[bytes, bytes]


class ItemInput(msgspec.Struct, frozen=True, array_like=True):
    """What an item asks."""

    body: bytes
    """A body of the native route."""
    reference: str | None
    headers: tuple[Header, ...] = ()
    """Those in which the batch's sender has narrowed where it may run."""


class ItemOutput(msgspec.Struct, frozen=True, array_like=True):
    """How an item was answered: with `result`, or with an error's `code` and `message`."""

    reference: str | None
    usage: Usage
    result: bytes | None = None
    """JSON."""
    code: int = 0
    message: str = ""


_NO_USAGE: Final = Usage(0, 0, 0)
_KEPT_HEADERS: Final = frozenset({REGIONS_HEADER, JURISDICTIONS_HEADER})
_encoder: Final = msgspec.msgpack.Encoder()
_input_decoder: Final = msgspec.msgpack.Decoder(ItemInput)
_output_decoder: Final = msgspec.msgpack.Decoder(ItemOutput)


def pick_narrowing(headers: Sequence[Header]) -> tuple[Header, ...]:
    """The headers in which a sender narrows where requests may run. Raises: `InvalidRequest`."""
    read_wishes(headers)
    return tuple(header for header in headers if header[0] in _KEPT_HEADERS)


def create_answered(reference: str | None, usage: Usage | None, result: bytes) -> ItemOutput:
    """The answer of an item that has a result."""
    return ItemOutput(reference, usage or _NO_USAGE, result)


def create_failed(reference: str | None, error: ServiceError) -> ItemOutput:
    """The answer of an item that ended with `error`."""
    return ItemOutput(reference, _NO_USAGE, None, find_row(error).code, error.message)


def encode_item(item: ItemInput | ItemOutput) -> bytes:
    """`item` as it is kept."""
    return _encoder.encode(item)


def decode_input(data: bytes) -> ItemInput:
    """The question inside `data`. Raises: `msgspec.MsgspecError`."""
    return _input_decoder.decode(data)


def decode_output(data: bytes) -> ItemOutput:
    """The answer inside `data`. Raises: `msgspec.MsgspecError`."""
    return _output_decoder.decode(data)
