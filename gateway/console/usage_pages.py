"""What was used: by the whole platform, and by one account, page by page.

Owns the queries; cursors, days and exports are those of the JSON routes.
Read next: `gateway.api.usage_pages`.
"""

from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from contracts.budgets import format_day
from contracts.errors import InvalidRequest, NotFound
from contracts.ids import AccountId
from contracts.usage import ExportForm, Step, UsageSummary
from gateway.api.forms import read_choice
from gateway.api.pages import find_account
from gateway.api.usage_pages import UsagePages as JsonUsagePages
from gateway.api.usage_pages import format_cursor, parse_cursor, read_days
from gateway.auth.caller import Caller
from gateway.console.page_table import PREFIX, PageTable
from gateway.console.parts import ConsoleParts
from gateway.console.usage_charts import draw_days

PER_PAGE: Final = 50
_USUAL_DAYS: Final = 30
_MAX_RANKED: Final = 100
_HOURS_PER_DAY: Final = 24
_STEP_S: Final = {Step.HOUR: 3600, Step.DAY: 86_400}
_MAX_CHART_DAYS: Final = 92


class UsagePages:
    """Reads sums, and hands out exports."""

    def __init__(self, parts: ConsoleParts) -> None:
        """`parts` have the ledger."""
        self._parts = parts
        self._export = JsonUsagePages(parts.ledger).export

    def add_to(self, table: PageTable) -> None:
        """Their routes."""
        table.show("usage", "/usage", self.show_platform)
        table.show("account_usage", "/accounts/{account_id}/usage", self.show_account)
        table.show("usage_export", "/accounts/{account_id}/usage/export", self.export)

    async def show_platform(self, request: Request, caller: Caller) -> Response:
        """Every account's use of some days, the dearest first."""
        days, error = self._find_days(request)
        ranked = await self._parts.ledger.rank_accounts(
            Step.DAY, days.start, days.stop, limit=_MAX_RANKED
        )
        names: dict[AccountId, str] = {}
        for account_id, _ in ranked:
            try:
                account = await self._parts.act(caller).get_account(account_id)
                names[account_id] = account.name
            except NotFound:  # deleted; its sums stay
                names[account_id] = "Deleted account"
        return self._parts.renderer.show(
            request,
            caller,
            "usage.html",
            status=200 if error is None else 400,
            ranked=ranked,
            names=names,
            charts=await draw_days(self._parts.ledger, days[-_MAX_CHART_DAYS:]),
            error=error,
            **_describe(days),
        )

    async def show_account(self, request: Request, caller: Caller) -> Response:
        """One account's totals by hour or day, model and token."""
        account = await self._parts.act(caller).get_account(find_account(request, caller))
        tokens = await self._parts.act(caller).list_api_tokens(account.account_id)
        query = request.query_params
        days, error = self._find_days(request)
        step, cursor = Step.DAY, None
        try:
            step = Step(read_choice(query.get("step"), "step", (Step.DAY, Step.HOUR)))
            cursor = parse_cursor(query.get("cursor"))
        except InvalidRequest as wrong:
            error = wrong
        scale = _HOURS_PER_DAY if step is Step.HOUR else 1
        totals = await self._parts.ledger.list_usage(
            account.account_id,
            step,
            days.start * scale,
            days.stop * scale,
            limit=PER_PAGE + 1,
            after=cursor,
        )
        shown = totals[:PER_PAGE]
        bounds = {"step": step, "since": format_day(days.start), "before": format_day(days.stop)}
        more = ""
        if len(totals) > PER_PAGE:
            more = urlencode({**bounds, "cursor": format_cursor(shown[-1])})
        return self._parts.renderer.show(
            request,
            caller,
            "account_usage.html",
            status=200 if error is None else 400,
            account=account,
            totals=[(_format_period(total.period, step), total) for total in shown],
            tokens={token.api_token_id: token.name for token in tokens},
            charts=await draw_days(self._parts.ledger, days[-_MAX_CHART_DAYS:], account.account_id),
            step=step,
            more=more,
            is_first=cursor is None,
            here=f"{PREFIX}/accounts/{account.account_id}/usage",
            exports=[
                (form, urlencode({**bounds, "format": form}).partition("&")[2])
                for form in ExportForm
            ],
            error=error,
            **_describe(days),
        )

    async def export(self, request: Request, caller: Caller) -> Response:
        """The very file of the JSON route."""
        await self._parts.act(caller).get_account(find_account(request, caller))
        return await self._export(request, caller)

    def _find_days(self, request: Request) -> tuple[range, InvalidRequest | None]:
        """The days that the query names, else the last ones, with what is wrong with it."""
        today = self._parts.today
        usual = range(today - _USUAL_DAYS + 1, today + 1)
        since, before = (request.query_params.get(name) for name in ("since", "before"))
        if not since and not before:
            return usual, None
        try:
            return read_days(
                since or format_day(usual.start), before or format_day(today + 1)
            ), None
        except InvalidRequest as error:
            return usual, error


def _describe(days: range) -> dict[str, object]:
    """What both pages say of their days."""
    return {
        "since": format_day(days.start),
        "before": format_day(days.stop),
        "nothing": UsageSummary(),
    }


def _format_period(period: int, step: Step) -> str:
    """The beginning of a period, as precise as its step."""
    moment = datetime.fromtimestamp(period * _STEP_S[step], UTC)
    return moment.strftime("%Y-%m-%d" if step is Step.DAY else "%Y-%m-%d %H:00")
