"""Limits of an account, and how much of them is used up.

Owns the form as browsers post it, money in units with decimals; it becomes the JSON routes' own
numbers. Read next: `contracts.quotas`, `contracts.budgets`.
"""

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from contracts.budgets import BudgetKey, BudgetKind, to_month
from contracts.errors import InvalidRequest, RequestError
from contracts.ids import ApiTokenId, ModelName
from contracts.pricing import format_exact_money, parse_money
from contracts.quotas import Quota, QuotaLimits, QuotaScope
from gateway.api.pages import find_account
from gateway.auth.caller import Caller
from gateway.console.page_table import PREFIX, PageTable
from gateway.console.parts import ConsoleParts
from gateway.console.posted_form import PostedForm, PostedFormReader
from gateway.console.usage_charts import draw_days

_LIMITS: Final = "/accounts/{account_id}/limits"
_MICRO: Final = 10**6
_NUM_DAYS: Final = 30
_MAX_DIGITS: Final = 18


class LimitFields(PostedForm, frozen=True, kw_only=True):
    """The limits of a scope, as text; an empty one is none, 0 is nothing at all."""

    api_token_id: str = ""
    model: str = ""
    requests_per_min: str = ""
    tokens_per_min: str = ""
    concurrent_streams: str = ""
    neurons_per_day: str = ""
    spend_per_month: str = ""


class ScopeFields(PostedForm, frozen=True, kw_only=True):
    """Whose limits are meant; both empty means the account's."""

    api_token_id: str = ""
    model: str = ""


@dataclass(frozen=True, slots=True)
class LimitRow:
    """A scope's limits, and what is used of its budgets."""

    quota: Quota
    title: str
    query: str
    neurons_used: float
    """Of today, in neurons."""
    spend_used_nano: int
    """Of this month."""


class LimitPages:
    """Reads and changes limits."""

    def __init__(self, parts: ConsoleParts) -> None:
        """Every operator acts with an administration of their own."""
        self._parts = parts
        self._renderer = parts.renderer

    def add_to(self, table: PageTable) -> None:
        """Their routes."""
        table.show("limits", _LIMITS, self.show)
        table.show("limit", _LIMITS + "/edit", self.ask)
        table.act("limit_set", _LIMITS + "/edit", PostedFormReader(LimitFields), self.set)
        table.act("limit_delete", _LIMITS + "/delete", PostedFormReader(ScopeFields), self.delete)

    async def show(self, request: Request, caller: Caller) -> Response:
        """All limits of the account with what is used of them, and its spend day by day."""
        administration = self._parts.act(caller)
        account = await administration.get_account(find_account(request, caller))
        names = {
            token.api_token_id: token.name
            for token in await administration.list_api_tokens(account.account_id)
        }
        rows = [
            await self._measure(quota, names)
            for quota in await administration.list_quotas(account.account_id)
        ]
        today = self._parts.today
        first = today - _NUM_DAYS + 1
        spend = BudgetKey(QuotaScope(account.account_id), BudgetKind.SPEND, to_month(today))
        return self._renderer.show(
            request,
            caller,
            "limits.html",
            account=account,
            rows=rows,
            spent_nano=await self._parts.ledger.read_budget(spend),
            charts=await draw_days(self._parts.ledger, range(first, today + 1), account.account_id),
        )

    async def ask(self, request: Request, caller: Caller) -> Response:
        """The form of one scope, filled in with what holds."""
        query = request.query_params
        token_id, model = query.get("api_token_id", ""), query.get("model", "")
        account_id = find_account(request, caller)
        found = next(
            (
                quota
                for quota in await self._parts.act(caller).list_quotas(account_id)
                if (quota.scope.api_token_id or "", quota.scope.model or "") == (token_id, model)
            ),
            None,
        )
        form = LimitFields(api_token_id=token_id, model=model)
        if found is not None:
            form = _to_fields(found)
        return await self._ask(request, caller, form, is_new=found is None)

    async def set(self, request: Request, caller: Caller, form: LimitFields) -> Response:
        """Back to the limits, or the form again with the reason."""
        account_id = find_account(request, caller)
        scope = QuotaScope(
            account_id,
            ApiTokenId(form.api_token_id) if form.api_token_id else None,
            ModelName(form.model) if form.model else None,
        )
        try:
            await self._parts.act(caller).set_quota(scope, _to_limits(form))
        except RequestError as error:
            return await self._ask(request, caller, form, error, is_new=True)
        caller.require_session().notices.append("The limits hold within two seconds.")
        return self._renderer.send_on(f"{PREFIX}/accounts/{account_id}/limits")

    async def delete(self, request: Request, caller: Caller, form: ScopeFields) -> Response:
        """Back to the limits, without those of one scope."""
        account_id = find_account(request, caller)
        scope = QuotaScope(
            account_id,
            ApiTokenId(form.api_token_id) if form.api_token_id else None,
            ModelName(form.model) if form.model else None,
        )
        await self._parts.act(caller).delete_quota(scope)
        caller.require_session().notices.append("These limits are gone.")
        return self._renderer.send_on(f"{PREFIX}/accounts/{account_id}/limits")

    async def _ask(
        self,
        request: Request,
        caller: Caller,
        form: LimitFields,
        error: RequestError | None = None,
        *,
        is_new: bool,
    ) -> Response:
        """The form."""
        administration = self._parts.act(caller)
        account = await administration.get_account(find_account(request, caller))
        return self._renderer.show(
            request,
            caller,
            "limit_edit.html",
            status=200 if error is None else 400,
            account=account,
            tokens=await administration.list_api_tokens(account.account_id),
            models=[card.name for card in self._parts.fleet.roster.list_models()],
            form=form,
            error=error,
            is_new=is_new,
        )

    async def _measure(self, quota: Quota, names: dict[ApiTokenId, str]) -> LimitRow:
        """The scope with what is used of its budgets."""
        ledger, today = self._parts.ledger, self._parts.today
        scope = quota.scope
        neurons = BudgetKey(scope, BudgetKind.NEURONS, today)
        spend = BudgetKey(scope, BudgetKind.SPEND, to_month(today))
        title = "The whole account"
        if scope.api_token_id is not None:
            title = f"API token “{names.get(scope.api_token_id, scope.api_token_id)}”"
        if scope.model is not None:
            title = scope.model if scope.api_token_id is None else f"{title}, {scope.model}"
        query = {"api_token_id": scope.api_token_id or "", "model": scope.model or ""}
        return LimitRow(
            quota,
            title,
            urlencode({name: value for name, value in query.items() if value}),
            await ledger.read_budget(neurons) / _MICRO,
            await ledger.read_budget(spend),
        )


def _to_limits(form: LimitFields) -> QuotaLimits:
    """What the form sets. Raises: `InvalidRequest`."""
    names = ("requests_per_min", "tokens_per_min", "concurrent_streams", "neurons_per_day")
    numbers = {name: _read_number(getattr(form, name), name) for name in names}
    spend_nano = None
    if form.spend_per_month.strip():
        try:
            spend_nano = parse_money(form.spend_per_month)
        except ValueError:
            raise InvalidRequest(
                "Spend is a number such as 250 or 0.5, with at most nine decimals.",
                param="spend_per_month",
            ) from None
    return QuotaLimits(**numbers, spend_nano_per_month=spend_nano)


def _read_number(text: str, name: str) -> int | None:
    """A count; None when nothing was typed. Raises: `InvalidRequest`."""
    text = text.strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        raise InvalidRequest(f"`{name}` must be a whole number, or empty.", param=name)
    return int(text)


def _to_fields(quota: Quota) -> LimitFields:
    """The limits as their form shows them."""

    def write(number: int | None) -> str:
        return "" if number is None else str(number)

    limits = quota.limits
    spend = ""
    if limits.spend_nano_per_month is not None:
        spend = format_exact_money(limits.spend_nano_per_month)
    return LimitFields(
        api_token_id=quota.scope.api_token_id or "",
        model=quota.scope.model or "",
        requests_per_min=write(limits.requests_per_min),
        tokens_per_min=write(limits.tokens_per_min),
        concurrent_streams=write(limits.concurrent_streams),
        neurons_per_day=write(limits.neurons_per_day),
        spend_per_month=spend,
    )
