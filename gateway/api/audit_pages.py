"""The audit log over HTTP, newest entries first.

Owns pages and their cursors; an API token reads its own account's entries, an operator all of them.
Read next: `gateway.api.audit_forms`, `tenancy.audit.store`.
"""

from dataclasses import replace
from typing import Annotated, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from contracts.errors import InvalidRequest, NotFound
from contracts.ids import AccountId, is_account_id
from gateway.api.audit_forms import to_operator_entry, to_tenant_entry, to_verdict_fields
from gateway.api.audit_products import CATEGORIES
from gateway.api.audit_query import (
    MAX_SEQUENCE,
    TERM_QUERY,
    find_resource_terms,
    read_terms,
    to_sequences,
)
from gateway.api.forms import read_choice, read_number, read_time_us, refuse_unknown_query
from gateway.api.pages import find_account, reply, reply_cursor, reply_history
from gateway.api.query_fields import Direction, Limit, Moment, QueryField
from gateway.auth.caller import Caller
from tenancy.administration import Administrations
from tenancy.audit.entries import AuditEntry, AuditFilter, AuditPart, AuditTerm

DEFAULT_LIMIT: Final = 100
MAX_LIMIT: Final = 1000
_ABOUT_US: Final = 86_400_000_000
"""How far an entry may be from the time that is said of it."""
_PAGE_QUERY: Final = (
    QueryField("limit", Limit),
    QueryField("cursor", Annotated[int, msgspec.Meta(ge=1, le=MAX_SEQUENCE)]),
    QueryField("direction", Direction),
    QueryField("action", str),
)
AUDIT_QUERY: Final = (
    QueryField("since", Moment, is_required=True),
    QueryField("before", Moment, is_required=True),
    *_PAGE_QUERY,
    *TERM_QUERY,
)
"""Of an account's own entries."""
HISTORY_QUERY: Final = (
    QueryField("since", Moment, is_required=True),
    QueryField("before", Moment, is_required=True),
    QueryField("action_time", Moment),
    *_PAGE_QUERY[:3],
)
"""Of what became of one resource."""
PLATFORM_AUDIT_QUERY: Final = (
    QueryField("account_id", str),
    QueryField("since", Moment),
    QueryField("before", Moment),
    *_PAGE_QUERY,
    QueryField("actor_id", str),
    QueryField("resource_id", str),
)
"""Of all entries, for operators."""


class AuditPages:
    """Lists what was changed."""

    def __init__(self, administrations: Administrations) -> None:
        """Each caller reads with an administration of its own."""
        self._administrations = administrations

    async def list_own(self, request: Request, caller: Caller) -> Response:
        """The entries of the account between `since` and `before`, which must be given."""
        _require_window(request)
        refuse_unknown_query(request, {field.name for field in AUDIT_QUERY})
        wanted = AuditFilter(
            account_id=find_account(request, caller), terms=read_terms(request.query_params)
        )
        entries, limit, after = await self._read(request, caller, wanted)
        return reply_cursor([to_tenant_entry(entry) for entry in entries], limit, after)

    async def list_categories(self, request: Request, caller: Caller) -> Response:
        """The categories that `product_category` takes, and the products in each."""
        refuse_unknown_query(request, ())
        return reply(CATEGORIES)

    async def list_history(self, request: Request, caller: Caller) -> Response:
        """What became of the resource that one entry of the account is about."""
        _require_window(request)
        refuse_unknown_query(request, {field.name for field in HISTORY_QUERY})
        entry = await self._find(request, caller)
        wanted = AuditFilter(
            account_id=entry.account_id,
            resource_id=entry.resource_id,
            terms=find_resource_terms(entry.action),
        )
        entries, limit, after = await self._read(request, caller, wanted)
        return reply_history([to_tenant_entry(entry) for entry in entries], limit, after)

    async def list_all(self, request: Request, caller: Caller) -> Response:
        """The entries of the platform, or of the account that `account_id` names."""
        refuse_unknown_query(request, {field.name for field in PLATFORM_AUDIT_QUERY})
        query = request.query_params
        account_id = query.get("account_id")
        if account_id is not None and not is_account_id(account_id):
            raise InvalidRequest("`account_id` is not the id of an account.", param="account_id")
        wanted = AuditFilter(
            account_id=None if account_id is None else AccountId(account_id),
            actor_id=query.get("actor_id"),
            resource_id=query.get("resource_id"),
        )
        entries, limit, after = await self._read(request, caller, wanted)
        return reply_cursor([to_operator_entry(entry) for entry in entries], limit, after)

    async def check(self, request: Request, caller: Caller) -> Response:
        """What a check of the whole log against its hashes and signed heads finds."""
        refuse_unknown_query(request, ())
        verdict = await self._administrations.act_as(caller.to_actor()).verify_audit_log()
        return reply(to_verdict_fields(verdict))

    async def _find(self, request: Request, caller: Caller) -> AuditEntry:
        """The account's entry in the path, of about `action_time` if that is said.

        Raises: `NotFound`, `InvalidRequest`.
        """
        about_us = read_time_us(request.query_params.get("action_time"), "action_time")
        sequences = to_sequences([request.path_params["entry_id"]])
        wanted = AuditFilter(
            account_id=find_account(request, caller),
            since_unix_us=None if about_us is None else about_us - _ABOUT_US,
            before_unix_us=None if about_us is None else about_us + _ABOUT_US,
            terms=(AuditTerm(AuditPart.SEQUENCE, sequences),),
        )
        administration = self._administrations.act_as(caller.to_actor())
        for entry in await administration.list_audit_entries(wanted, limit=1):
            return entry
        raise NotFound("There is no such entry.")

    async def _read(
        self, request: Request, caller: Caller, wanted: AuditFilter
    ) -> tuple[list[AuditEntry], int, str]:
        """The entries of `wanted` on the page asked for, its size, and the cursor to go on from."""
        query = request.query_params
        limit = read_number(query.get("limit"), "limit", DEFAULT_LIMIT, MAX_LIMIT)
        direction = read_choice(query.get("direction"), "direction", ("desc", "asc"))
        cursor = query.get("cursor")
        wanted = replace(
            wanted,
            since_unix_us=read_time_us(query.get("since"), "since"),
            before_unix_us=read_time_us(query.get("before"), "before"),
            action=query.get("action"),
        )
        entries = await self._administrations.act_as(caller.to_actor()).list_audit_entries(
            wanted,
            limit=limit,
            after=read_number(cursor, "cursor", 1, MAX_SEQUENCE) if cursor else None,
            oldest_first=direction == "asc",
        )
        return entries, limit, str(entries[-1].sequence) if len(entries) == limit else ""


def _require_window(request: Request) -> None:
    """Raises `InvalidRequest` unless the time is bounded on both sides."""
    for name in ("since", "before"):
        if not request.query_params.get(name):
            raise InvalidRequest(f"`{name}` is missing: give a date or a time.", param=name)
