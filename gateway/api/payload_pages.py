"""Payload logs over HTTP, for the account's own tokens.

Owns the forms; must not know how anything is recorded. Read next:
`tenancy.payloads.administration`.
"""

from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from contracts.errors import InvalidRequest, NotFound
from contracts.ids import RequestId, is_request_id
from contracts.payloads import MAX_PAYLOAD_DAYS, PayloadHead
from gateway.api.forms import Form, FormReader, format_unix_s, read_number, refuse_unknown_query
from gateway.api.pages import find_account, reply, reply_cursor
from gateway.api.query_fields import Limit, QueryField
from gateway.api.token_forms import DeletedObject
from gateway.auth.caller import Caller
from tenancy.administration import Administration, Administrations

DEFAULT_LIMIT: Final = 100
MAX_LIMIT: Final = 1000
PAYLOAD_QUERY: Final = (QueryField("limit", Limit), QueryField("cursor", str))
_KNOWN: Final = frozenset(field.name for field in PAYLOAD_QUERY)


class PayloadSettings(Form, frozen=True, kw_only=True):
    """For how many days payloads are kept; null: not at all, and what was kept is deleted."""

    days: int | None


PAYLOAD_SETTINGS: Final = FormReader(PayloadSettings)


class PayloadSettingsFields(msgspec.Struct, frozen=True, kw_only=True):
    """The same as it is shown."""

    days: int | None
    max_days: int = MAX_PAYLOAD_DAYS


class PayloadHeadFields(msgspec.Struct, frozen=True, kw_only=True):
    """A kept request, unopened."""

    id: str
    created_on: str | None
    expires_on: str | None
    route: str
    model: str
    api_token_id: str
    status: int
    num_bytes: int
    is_cut: bool


class PayloadFields(msgspec.Struct, frozen=True, kw_only=True):
    """A kept request and its answer; bytes that are no UTF-8 are shown as U+FFFD."""

    head: PayloadHeadFields
    request: str
    response: str


class DeletedCount(msgspec.Struct, frozen=True):
    """How many were deleted."""

    deleted: int


class PayloadPages:
    """Payload logs of the account in the path."""

    def __init__(self, administrations: Administrations) -> None:
        """Each caller acts with an administration of its own."""
        self._administrations = administrations

    async def get_settings(self, request: Request, caller: Caller) -> Response:
        """Whether payloads are kept."""
        account = await self._act(caller).get_account(find_account(request, caller))
        return reply(PayloadSettingsFields(days=account.payload_days))

    async def set_settings(self, request: Request, caller: Caller) -> Response:
        """The same, changed."""
        form = await PAYLOAD_SETTINGS.read(request)
        await self._act(caller).set_payload_days(find_account(request, caller), form.days)
        return reply(PayloadSettingsFields(days=form.days))

    async def list_all(self, request: Request, caller: Caller) -> Response:
        """The newest first, unopened."""
        refuse_unknown_query(request, _KNOWN)
        query = request.query_params
        limit = read_number(query.get("limit"), "limit", DEFAULT_LIMIT, MAX_LIMIT)
        cursor = query.get("cursor") or None
        if cursor is not None and not is_request_id(cursor):
            raise InvalidRequest("`cursor` is none that this list has given.", param="cursor")
        heads = await self._act(caller).list_payloads(
            find_account(request, caller),
            limit=limit,
            after=None if cursor is None else RequestId(cursor),
        )
        after = heads[-1].request_id if len(heads) == limit else ""
        return reply_cursor([_to_head_fields(head) for head in heads], limit, after)

    async def get(self, request: Request, caller: Caller) -> Response:
        """One, word for word."""
        payload = await self._act(caller).read_payload(
            find_account(request, caller), _find_request(request)
        )
        return reply(
            PayloadFields(
                head=_to_head_fields(payload.head),
                request=payload.asked.decode(errors="replace"),
                response=payload.answered.decode(errors="replace"),
            )
        )

    async def delete(self, request: Request, caller: Caller) -> Response:
        """The id of one that is kept no more."""
        request_id = _find_request(request)
        await self._act(caller).delete_payload(find_account(request, caller), request_id)
        return reply(DeletedObject(request_id))

    async def delete_all(self, request: Request, caller: Caller) -> Response:
        """How many are kept no more."""
        count = await self._act(caller).delete_payloads(find_account(request, caller))
        return reply(DeletedCount(count))

    def _act(self, caller: Caller) -> Administration:
        return self._administrations.act_as(caller.to_actor())


def _find_request(request: Request) -> RequestId:
    """The request in the path. Raises: `NotFound` for what no id looks like."""
    request_id: str = request.path_params["request_id"]
    if not is_request_id(request_id):
        raise NotFound("The account has no payload log of this request.", param="request_id")
    return RequestId(request_id)


def _to_head_fields(head: PayloadHead) -> PayloadHeadFields:
    return PayloadHeadFields(
        id=head.request_id,
        created_on=format_unix_s(head.began_unix_ms // 1000),
        expires_on=format_unix_s(head.expires_unix_ms // 1000),
        route=head.route,
        model=head.model,
        api_token_id=head.api_token_id,
        status=head.status,
        num_bytes=head.num_bytes,
        is_cut=head.is_cut,
    )
