"""A form of several parts, read as it comes: nothing of it is kept here but what is not understood.

Pure; bytes go in, parts and their data come out. Owns the grammar and its bounds; must not know
what parts mean. Source: RFC 7578; RFC 2046 section 5.1.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from contracts.errors import InvalidRequest

MAX_PART_HEADER_BYTES: Final = 8192
MAX_PARTS: Final = 16
_MAX_BETWEEN_BYTES: Final = 1024
"""Before the first part, and behind a boundary to the end of its line."""
_TYPE: Final = re.compile(r"multipart/form-data\s*(?:;.*)?", re.IGNORECASE | re.DOTALL)
_BOUNDARY: Final = re.compile(
    r""";\s*boundary=(?:"([0-9A-Za-z'()+_,./:=? -]{1,70})"|([^\s;"]{1,70}))\s*(?:;|$)""",
    re.IGNORECASE,
)
_PART_NAME: Final = re.compile(rb""";\s*name=(?:"([^"]*)"|([^\s;"]+))""", re.IGNORECASE)
_FORM_DATA: Final = re.compile(rb"form-data\s*(?:;|$)", re.IGNORECASE)
_DISPOSITION: Final = b"content-disposition"
_TRANSFER_CODING: Final = b"content-transfer-encoding"
_PLAIN: Final = (b"7bit", b"8bit", b"binary")
_LINE_END: Final = b"\r\n"
_HEADERS_END: Final = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class PartBegun:
    """A part begins."""

    name: str


@dataclass(frozen=True, slots=True)
class PartEnded:
    """The part that was begun last is whole."""


PartEvent = PartBegun | bytes | PartEnded
"""Bytes are data of the part that was begun last."""


def read_boundary(content_type: str) -> bytes:
    """What stands between the parts. Raises: `InvalidRequest` for what is no such form."""
    match = _BOUNDARY.search(content_type)
    if _TYPE.fullmatch(content_type) is None or match is None:
        raise InvalidRequest(
            "The body must be a form: `Content-Type: multipart/form-data` with its boundary."
        )
    return (match[1] or match[2]).encode("latin-1")


class _State(Enum):
    """What a step says that has brought nothing to tell."""

    MORE = auto()
    """More bytes are needed."""
    ON = auto()
    """Something else comes next."""


class MultipartReader:
    """Reads one form."""

    def __init__(self, boundary: bytes) -> None:
        """`boundary` is the one of the content type."""
        self._delimiter = b"\r\n--" + boundary
        self._rest = bytearray(_LINE_END)  # the first boundary has no line before it
        self._num_parts = 0
        self._read = self._read_preamble

    @property
    def is_over(self) -> bool:
        """True once the last boundary was read."""
        return self._read == self._read_nothing

    def feed(self, data: bytes) -> Iterator[PartEvent]:
        """What `data` brings; all of it is to be read before more is fed.

        Raises: `InvalidRequest`.
        """
        self._rest += data
        while (event := self._read()) is not _State.MORE:
            if event is not _State.ON:
                yield event

    # -- states: each takes from `_rest` what it understands

    def _read_preamble(self) -> PartEvent | _State:
        """What is before the first part, which nobody reads."""
        found = self._rest.find(self._delimiter)
        if found < 0:
            if len(self._rest) > _MAX_BETWEEN_BYTES:
                raise InvalidRequest("The form's boundary is not in the body.")
            return _State.MORE
        del self._rest[: found + len(self._delimiter)]
        self._read = self._read_boundary
        return _State.ON

    def _read_boundary(self) -> PartEvent | _State:
        """What follows a boundary: another part, or the end."""
        if len(self._rest) < 2:
            return _State.MORE
        if self._rest.startswith(b"--"):
            self._read = self._read_nothing
            return _State.ON
        found = self._rest.find(_LINE_END)
        if found < 0 and len(self._rest) <= _MAX_BETWEEN_BYTES:
            return _State.MORE
        if found < 0 or self._rest[:found].strip(b" \t"):
            raise InvalidRequest("The form has a boundary with something behind it.")
        del self._rest[:found]  # the line's end stays, for a part may have no headers
        self._read = self._read_headers
        return _State.ON

    def _read_headers(self) -> PartEvent | _State:
        found = self._rest.find(_HEADERS_END)
        if (len(self._rest) if found < 0 else found) > MAX_PART_HEADER_BYTES:
            raise InvalidRequest("A part of the form has headers that are too long.")
        if found < 0:
            return _State.MORE
        self._num_parts += 1
        if self._num_parts > MAX_PARTS:
            raise InvalidRequest(f"The form has more than {MAX_PARTS} parts.")
        name = _find_name(bytes(self._rest[:found]))
        del self._rest[: found + len(_HEADERS_END)]
        self._read = self._read_data
        return PartBegun(name)

    def _read_data(self) -> PartEvent | _State:
        found = self._rest.find(self._delimiter)
        if found == 0:
            del self._rest[: len(self._delimiter)]
            self._read = self._read_boundary
            return PartEnded()
        safe = found if found > 0 else len(self._rest) - len(self._delimiter) + 1
        if safe <= 0:
            return _State.MORE
        data = bytes(self._rest[:safe])
        del self._rest[:safe]
        return data

    def _read_nothing(self) -> PartEvent | _State:
        """What is behind the last part, which nobody reads."""
        self._rest.clear()
        return _State.MORE


def _find_name(headers: bytes) -> str:
    """The name of the part that has these headers. Raises: `InvalidRequest`."""
    name = None
    for line in headers.split(_LINE_END):
        key, _, value = line.partition(b":")
        key, value = key.strip().lower(), value.strip()
        if key == _TRANSFER_CODING and value.lower() not in _PLAIN:
            raise InvalidRequest("A part of the form is packed, which is not understood.")
        if key == _DISPOSITION and _FORM_DATA.match(value) is not None:
            match = _PART_NAME.search(value)
            name = None if match is None else match[1] if match[1] is not None else match[2]
    if name is None:
        raise InvalidRequest("A part of the form has no name.")
    return name.decode("utf-8", "replace")
