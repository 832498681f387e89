"""The audit log in the console: newest entries first, and the check of its chain.

Owns the query; the log and its check are those of the JSON routes. Read next:
`gateway.api.audit_pages`, `tenancy.audit.verification`.
"""

from typing import Any, Final, cast
from urllib.parse import urlencode

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from contracts.errors import InvalidRequest
from contracts.ids import AccountId, is_account_id
from gateway.api.audit_forms import to_verdict_fields
from gateway.api.forms import read_number, read_time_us
from gateway.auth.caller import Caller
from gateway.console.page_table import PageTable
from gateway.console.parts import ConsoleParts
from tenancy.audit.entries import AuditEntry, AuditFilter
from tenancy.changes import Action

PER_PAGE: Final = 50
_FIELDS: Final = ("account_id", "action", "actor_id", "since", "before")
_MAX_SEQUENCE: Final = 2**63 - 1


class AuditPage:
    """Lists what was changed."""

    def __init__(self, parts: ConsoleParts) -> None:
        """Every operator reads with an administration of their own."""
        self._parts = parts

    def add_to(self, table: PageTable) -> None:
        """Its routes."""
        table.show("audit", "/audit", self.show)
        table.show("audit_check", "/audit/check", self.check)

    async def show(self, request: Request, caller: Caller) -> Response:
        """The entries that fit the query."""
        query = {name: request.query_params.get(name, "").strip() for name in _FIELDS}
        after, error, wanted = None, None, AuditFilter()
        try:
            wanted = _to_filter(query)
            cursor = request.query_params.get("after")
            after = read_number(cursor, "after", 1, _MAX_SEQUENCE) if cursor else None
        except InvalidRequest as wrong:
            error = wrong
        entries = await self._parts.act(caller).list_audit_entries(
            wanted, limit=PER_PAGE + 1, after=after
        )
        given = {name: value for name, value in query.items() if value}
        more = ""
        if len(entries) > PER_PAGE:
            more = urlencode({**given, "after": entries[PER_PAGE - 1].sequence})
        return self._parts.renderer.show(
            request,
            caller,
            "audit.html",
            status=200 if error is None else 400,
            entries=[(entry, list_details(entry)) for entry in entries[:PER_PAGE]],
            wanted=query,
            actions=list(Action),
            more=more,
            first=urlencode(given),
            is_first=after is None,
            error=error,
        )

    async def check(self, request: Request, caller: Caller) -> Response:
        """What a check of the whole log finds."""
        verdict = await self._parts.act(caller).verify_audit_log()
        return self._parts.renderer.show(
            request, caller, "audit_check.html", verdict=to_verdict_fields(verdict)
        )


def list_details(entry: AuditEntry) -> list[tuple[str, str]]:
    """What an entry says, field by field; what was left empty is left out."""
    details = msgspec.json.decode(entry.details, type=dict[str, Any])
    return [
        (name.replace("_", " "), value if isinstance(value, str) else _write(value))
        for name, value in details.items()
        if value is not None
    ]


def _write(value: Any) -> str:
    """Anything but a text, as JSON without its empty fields."""
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        value = {name: inner for name, inner in fields.items() if inner is not None}
    return msgspec.json.encode(value).decode()


def _to_filter(query: dict[str, str]) -> AuditFilter:
    """What the query asks for. Raises: `InvalidRequest`."""
    account_id = query["account_id"]
    if any("\0" in text for text in query.values()):
        raise InvalidRequest("The query has characters that no text has.")
    if account_id and not is_account_id(account_id):
        raise InvalidRequest("This is not the id of an account.", param="account_id")
    return AuditFilter(
        account_id=AccountId(account_id) if account_id else None,
        since_unix_us=read_time_us(query["since"], "since"),
        before_unix_us=read_time_us(query["before"], "before"),
        action=query["action"] or None,
        actor_id=query["actor_id"] or None,
    )
