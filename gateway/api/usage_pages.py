"""What an account has used and what it cost, from the sums by hour and day.

Owns the query and the shape of its answer; money is in nano-units and neurons in millionths, so
that nothing is rounded. Must not know how sums are made (`tenancy.usage.roll_up`).
"""

import base64
import binascii
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from contracts.budgets import format_day
from contracts.errors import InvalidRequest
from contracts.ids import ApiTokenId, ModelName
from contracts.pricing import TokenCounts
from contracts.usage import ExportForm, Step, UsageCursor, UsageTotal
from gateway.api.forms import (
    format_unix_s,
    read_choice,
    read_number,
    read_time_us,
    refuse_unknown_query,
)
from gateway.api.pages import find_account, reply_cursor
from gateway.api.query_fields import Limit, Moment, QueryField
from gateway.auth.caller import Caller
from tenancy.interfaces import UsageLedger

DEFAULT_LIMIT: Final = 100
MAX_LIMIT: Final = 1000
_STEP_US: Final = {Step.HOUR: 3_600_000_000, Step.DAY: 86_400_000_000}
_LATEST: Final = 2**31 - 1
"""Beyond every period of either step."""
USAGE_QUERY: Final = (
    QueryField("step", Step),
    QueryField("since", Moment),
    QueryField("before", Moment),
    QueryField("limit", Limit),
    QueryField("cursor", str),
)
EXPORT_QUERY: Final = (
    QueryField("since", Moment, is_required=True),
    QueryField("before", Moment, is_required=True),
    QueryField("format", ExportForm),
)
MAX_EXPORTED_DAYS: Final = 366
_EXPORT_TYPES: Final = {
    ExportForm.JSONL: "application/x-ndjson",
    ExportForm.CSV: "text/csv; charset=utf-8; header=present",
}
EXPORT_MEDIA: Final = ("application/x-ndjson", "text/csv")
_KNOWN_OF_EXPORTS: Final = frozenset(field.name for field in EXPORT_QUERY)
_KNOWN: Final = frozenset(field.name for field in USAGE_QUERY)
_cursor_decoder: Final = msgspec.json.Decoder(tuple[int, str, str])


class UsageFields(msgspec.Struct, frozen=True, kw_only=True):
    """What one API token used of one model in one period."""

    since: str | None
    """When the period begins."""
    model: str
    api_token_id: str
    requests: int
    tokens: TokenCounts
    cost_nano: int
    microneurons: int


class UsagePages:
    """Lists usage of the account in the path."""

    def __init__(self, ledger: UsageLedger) -> None:
        """`ledger` has the sums."""
        self._ledger = ledger

    async def list_totals(self, request: Request, caller: Caller) -> Response:
        """Totals per period, model and token, those that begin in [`since`, `before`)."""
        refuse_unknown_query(request, _KNOWN)
        query = request.query_params
        step = Step(read_choice(query.get("step"), "step", (Step.DAY, Step.HOUR)))
        limit = read_number(query.get("limit"), "limit", DEFAULT_LIMIT, MAX_LIMIT)
        since_us, before_us = (read_time_us(query.get(n), n) for n in ("since", "before"))
        totals = await self._ledger.list_usage(
            find_account(request, caller),
            step,
            0 if since_us is None else -(-since_us // _STEP_US[step]),
            _LATEST if before_us is None else -(-before_us // _STEP_US[step]),
            limit=limit,
            after=parse_cursor(query.get("cursor")),
        )
        after = format_cursor(totals[-1]) if len(totals) == limit else ""
        return reply_cursor([_to_fields(total, step) for total in totals], limit, after)

    async def export(self, request: Request, caller: Caller) -> Response:
        """Every request that began on the days in [`since`, `before`), as a file."""
        refuse_unknown_query(request, _KNOWN_OF_EXPORTS)
        query = request.query_params
        form = ExportForm(
            read_choice(query.get("format"), "format", (ExportForm.JSONL, ExportForm.CSV))
        )
        account_id = find_account(request, caller)
        days = read_days(query.get("since"), query.get("before"))
        name = f"usage-{account_id[:8]}-{format_day(days.start)}-{format_day(days.stop)}.{form}"
        return StreamingResponse(
            self._ledger.export_usage(account_id, days, form),
            media_type=_EXPORT_TYPES[form],
            headers={
                "content-disposition": f'attachment; filename="{name}"',
                "x-content-type-options": "nosniff",
                "cache-control": "no-store",
            },
        )


def read_days(since: str | None, before: str | None) -> range:
    """The days from `since` to before `before`, both of which must be given.

    Raises: `InvalidRequest`.
    """
    days: list[int] = []
    for name, text in (("since", since), ("before", before)):
        time_us = read_time_us(text, name)
        if time_us is None:
            raise InvalidRequest(f"`{name}` is missing: give a date.", param=name)
        days.append(time_us // _STEP_US[Step.DAY])
    if not 0 < days[1] - days[0] <= MAX_EXPORTED_DAYS:
        raise InvalidRequest(
            f"`before` must be 1 to {MAX_EXPORTED_DAYS} days after `since`.", param="before"
        )
    return range(*days)


def _to_fields(total: UsageTotal, step: Step) -> UsageFields:
    """The total as it is shown."""
    return UsageFields(
        since=format_unix_s(total.period * _STEP_US[step] // 1_000_000),
        model=total.model,
        api_token_id=total.api_token_id,
        requests=total.num_requests,
        tokens=total.tokens,
        cost_nano=total.cost_nano,
        microneurons=total.num_microneurons,
    )


def format_cursor(last: UsageTotal) -> str:
    """Where a page ends, as text that clients hand back."""
    place = (last.period, last.model, last.api_token_id)
    return base64.urlsafe_b64encode(msgspec.json.encode(place)).decode()


def parse_cursor(text: str | None) -> UsageCursor | None:
    """The place that `text` stands for. Raises: `InvalidRequest`."""
    if not text:
        return None
    try:
        period, model, token_id = _cursor_decoder.decode(base64.urlsafe_b64decode(text))
        if not 0 <= period <= _LATEST or "\0" in model + token_id:
            raise ValueError(period)
    except (binascii.Error, ValueError):
        raise InvalidRequest("`cursor` is none that we gave out.", param="cursor") from None
    return UsageCursor(period, ModelName(model), ApiTokenId(token_id))
