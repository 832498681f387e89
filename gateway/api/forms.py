"""Bodies and queries of ordinary pages: read within bounds, decoded strictly, refused by name.

Owns what holds for every form: a field that a form does not have is an error that names it, so
that nobody believes to have set what was ignored. Must not know any page.
"""

import re
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Final, Generic, TypeVar

import msgspec
from starlette.requests import Request

from contracts.errors import InvalidRequest, PayloadTooLarge
from gateway.dialects.strict_json import decode_json
from gateway.middleware.coding import CODING, is_coded, refuse_coding

FormT = TypeVar("FormT", bound=msgspec.Struct)

MAX_BODY_BYTES: Final = 256 * 1024
MAX_PAGE: Final = 1_000_000
"""The last page that a list is asked for."""
JSON: Final = "application/json"
_CODING: Final = CODING.decode()
_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}")


class Form(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of what a body may hold."""


class NoForm(Form, frozen=True, kw_only=True):
    """A body that holds nothing; it may be missing altogether."""


class FormReader(Generic[FormT]):
    """Reads bodies of one form; a route names its own, so that tests see what it takes."""

    def __init__(self, kind: type[FormT], *, may_be_empty: bool = False, media: str = JSON) -> None:
        """`may_be_empty` takes a body of no bytes for an empty object. Of another media type than
        JSON the page reads bodies itself.
        """
        self.kind = kind
        self.media = media
        self._decoder = msgspec.json.Decoder(kind)
        self._may_be_empty = may_be_empty

    async def read(self, request: Request) -> FormT:
        """The body. Raises: `InvalidRequest`, `CodingUnsupported`, `PayloadTooLarge`."""
        if any(is_coded(value.encode("latin-1")) for value in request.headers.getlist(_CODING)):
            raise refuse_coding()
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > MAX_BODY_BYTES:
                raise PayloadTooLarge(f"The body is larger than {MAX_BODY_BYTES} bytes.")
        if not body and self._may_be_empty:
            body += b"{}"
        return decode_json(self._decoder, body)


NO_FORM: Final = FormReader(NoForm, may_be_empty=True)


def read_number(text: str | None, name: str, default: int, maximum: int) -> int:
    """A number from the query, from 1 to `maximum`. Raises: `InvalidRequest`."""
    if text is None or text == "":
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(maximum))):
        raise InvalidRequest(f"`{name}` must be a number from 1 to {maximum}.", param=name)
    if not 1 <= int(text) <= maximum:
        raise InvalidRequest(f"`{name}` must be a number from 1 to {maximum}.", param=name)
    return int(text)


def read_choice(text: str | None, name: str, choices: tuple[str, ...]) -> str:
    """One of `choices`, the first of which is meant by leaving it out. Raises: `InvalidRequest`."""
    if text is None or text == "":
        return choices[0]
    if text not in choices:
        raise InvalidRequest(f"`{name}` is one of {', '.join(choices)}.", param=name)
    return text


def read_time_us(text: str | None, name: str) -> int | None:
    """A date or RFC 3339 time of the query, in microseconds since 1970; None when left out.

    Raises: `InvalidRequest`.
    """
    if text is None or text == "":
        return None
    try:
        moment = datetime.fromisoformat(text.replace(" ", "+"))  # a plus that was not encoded
        if moment.tzinfo is None:
            if not _DATE.fullmatch(text):
                raise ValueError(text)
            moment = moment.replace(tzinfo=UTC)
    except ValueError:
        raise InvalidRequest(
            f"`{name}` must be a date or a time such as 2026-01-31T12:00:00Z.", param=name
        ) from None
    return int(moment.timestamp() * 1_000_000)


def refuse_unknown_query(request: Request, known: Collection[str]) -> None:
    """Raises `InvalidRequest` for a parameter that would be ignored, as no filter must be, and for
    a value with NUL, which a database refuses as if it were away.
    """
    for name, text in request.query_params.multi_items():
        if name not in known:
            raise InvalidRequest(f"Unknown parameter; known here: {', '.join(sorted(known))}.")
        if "\0" in text:
            raise InvalidRequest(f"`{name}` has characters that no text has.", param=name)


def format_unix_s(unix_s: int | None) -> str | None:
    """A time in the form of RFC 3339."""
    if unix_s is None:
        return None
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
