"""What ordinary pages share: whose account is meant, and the envelopes of their answers.

Must not know what is answered. Read next: `gateway.api.forms`.
"""

from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from contracts.ids import AccountId
from gateway.auth.caller import Caller
from gateway.dialects.replies import PageEnvelope, PageInfo, SuccessEnvelope, encoder
from gateway.errors import Notice

_JSON: Final = "application/json"


class PartInfo(msgspec.Struct, frozen=True):
    """Which page it is, of a list that nobody has counted."""

    page: int
    per_page: int
    count: int


class PartEnvelope(msgspec.Struct, frozen=True):
    """The v4 envelope around such a page; the one after the last is empty."""

    result: Any
    result_info: PartInfo
    success: bool = True
    errors: tuple[Notice, ...] = ()
    messages: tuple[Notice, ...] = ()


class Cursors(msgspec.Struct, frozen=True):
    """Where the next page begins; empty text at the end."""

    after: str


class CursorInfo(msgspec.Struct, frozen=True):
    """How far a list has been read; the cursor in both places where clients look for it."""

    count: int
    per_page: int
    cursor: str
    cursors: Cursors


class HistoryInfo(CursorInfo, frozen=True):
    """The same for what became of one resource."""

    history_status: str = "exact"
    """Resources are known by their ids."""


class CursorEnvelope(msgspec.Struct, frozen=True):
    """The v4 envelope around one piece of a list that is read to its end."""

    result: Any
    result_info: CursorInfo
    success: bool = True
    errors: tuple[Notice, ...] = ()
    messages: tuple[Notice, ...] = ()


def find_account(request: Request, caller: Caller) -> AccountId:
    """The account in the matched route, else that of the calling token."""
    named = request.path_params.get("account_id")
    return caller.require_principal().account_id if named is None else AccountId(named)


def reply(result: Any, *messages: Notice) -> Response:
    """`result` in its envelope."""
    envelope = SuccessEnvelope(result, messages=messages)
    return Response(encoder.encode(envelope), media_type=_JSON)


def reply_page(shown: list[Any], page: int, per_page: int, total: int) -> Response:
    """One page of a list of `total`."""
    info = PageInfo(page, per_page, len(shown), total, -(-total // per_page))
    return Response(encoder.encode(PageEnvelope(shown, info)), media_type=_JSON)


def reply_part(shown: list[Any], page: int, per_page: int) -> Response:
    """One page of a list that is too long to be counted."""
    info = PartInfo(page, per_page, len(shown))
    return Response(encoder.encode(PartEnvelope(shown, info)), media_type=_JSON)


def reply_history(shown: list[Any], limit: int, after: str) -> Response:
    """One piece of what became of a resource; `after` is empty at its end."""
    info = HistoryInfo(len(shown), limit, after, Cursors(after))
    return Response(encoder.encode(CursorEnvelope(shown, info)), media_type=_JSON)


def reply_cursor(shown: list[Any], limit: int, after: str) -> Response:
    """One piece of a list; `after` is empty at its end."""
    info = CursorInfo(len(shown), limit, after, Cursors(after))
    return Response(encoder.encode(CursorEnvelope(shown, info)), media_type=_JSON)
