"""Accounts in the console: listed, made, changed, suspended and deleted.

Owns the forms as browsers post them; they become the very forms of the JSON routes, and tenancy
checks and records what they ask for. Read next: `gateway.api.account_forms`.
"""

from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from contracts.errors import InvalidRequest, RequestError
from contracts.grant import RetentionClass
from contracts.ids import AccountId, is_account_id
from contracts.usage import Step, UsageSummary
from gateway.api.account_forms import (
    AccountCreate,
    AccountUpdate,
    create_account,
    to_account_change,
)
from gateway.api.pages import find_account
from gateway.auth.caller import Caller
from gateway.console.page_table import PREFIX, PageTable
from gateway.console.parts import ConsoleParts
from gateway.console.posted_form import Nothing, PostedForm, PostedFormReader
from tenancy.interfaces import Account, AccountStatus

PER_PAGE: Final = 50
_ACCOUNT: Final = "/accounts/{account_id}"
_NUM_DAYS: Final = 30
NONE: Final = "none"
"""What is typed where not even one region or model is allowed."""


class AccountFields(PostedForm, frozen=True, kw_only=True):
    """What can be said of an account, as text."""

    name: str
    retention: str = RetentionClass.STANDARD
    priority: str = "0"
    allowed_regions: str = ""
    """Separated by commas or spaces; empty means any."""
    allowed_jurisdictions: str = ""
    preferred_regions: str = ""
    """The same; empty means none."""
    preferred_jurisdictions: str = ""
    allowed_models: str = ""
    is_metered: str = ""
    """`yes` while the account pays; new ones do."""


class Confirmation(PostedForm, frozen=True, kw_only=True):
    """The account's name, typed again."""

    name: str


EMPTY: Final = AccountFields(name="", is_metered="yes")


class AccountPages:
    """Reads and changes any account."""

    def __init__(self, parts: ConsoleParts) -> None:
        """Every operator acts with an administration of their own."""
        self._parts = parts
        self._renderer = parts.renderer

    def add_to(self, table: PageTable) -> None:
        """Their routes; fixed names come before ids."""
        fields, nothing = PostedFormReader(AccountFields), PostedFormReader(Nothing)
        table.show("accounts", "/accounts", self.list_all)
        table.show("account_new", "/accounts/new", self.ask_new)
        table.act("account_create", "/accounts/new", fields, self.create)
        table.show("account", _ACCOUNT, self.show)
        table.act("account_change", _ACCOUNT, fields, self.change)
        table.show("account_suspend_ask", _ACCOUNT + "/suspend", self.ask_suspend)
        table.act("account_suspend", _ACCOUNT + "/suspend", nothing, self.suspend)
        table.act("account_resume", _ACCOUNT + "/resume", nothing, self.resume)
        table.show("account_delete_ask", _ACCOUNT + "/delete", self.ask_delete)
        table.act(
            "account_delete", _ACCOUNT + "/delete", PostedFormReader(Confirmation), self.delete
        )
        table.act("account_new_salt", _ACCOUNT + "/new-salt", nothing, self.rotate_salt)

    async def list_all(self, request: Request, caller: Caller) -> Response:
        """Accounts in order of their ids, with what they used in the last days."""
        cursor = request.query_params.get("after", "")
        after = AccountId(cursor) if is_account_id(cursor) else None
        accounts = await self._parts.act(caller).list_accounts(limit=PER_PAGE + 1, after=after)
        today = self._parts.today
        ranked = await self._parts.ledger.rank_accounts(
            Step.DAY, today - _NUM_DAYS + 1, today + 1, limit=1000
        )
        return self._renderer.show(
            request,
            caller,
            "accounts.html",
            accounts=accounts[:PER_PAGE],
            usage=dict(ranked),
            nothing=UsageSummary(),
            after=accounts[PER_PAGE - 1].account_id if len(accounts) > PER_PAGE else "",
            is_first=after is None,
        )

    async def ask_new(self, request: Request, caller: Caller) -> Response:
        """The form of a new account."""
        return self._ask(request, caller, EMPTY)

    async def create(self, request: Request, caller: Caller, form: AccountFields) -> Response:
        """On to the new account, or the form again with the reason."""
        try:
            wanted = _to_json_form(AccountCreate, form)
            account = await create_account(self._parts.act(caller), wanted)
        except RequestError as error:
            return self._ask(request, caller, form, error)
        caller.require_session().notices.append(f"The account “{account.name}” is there.")
        return self._renderer.send_on(f"{PREFIX}/accounts/{account.account_id}")

    async def show(self, request: Request, caller: Caller) -> Response:
        """One account and the form to change it."""
        account = await self._get(request, caller)
        return self._show(request, caller, account, _to_fields(account))

    async def change(self, request: Request, caller: Caller, form: AccountFields) -> Response:
        """The account with other settings."""
        account = await self._get(request, caller)
        try:
            change = to_account_change(
                _to_json_form(AccountUpdate, form, is_metered=form.is_metered == "yes")
            )
            await self._parts.act(caller).change_account(account.account_id, change)
        except RequestError as error:
            return self._show(request, caller, account, form, error)
        return self._return(caller, account.account_id, "Saved. It holds within two seconds.")

    async def ask_suspend(self, request: Request, caller: Caller) -> Response:
        """What suspending would mean."""
        account = await self._get(request, caller)
        return self._renderer.show(request, caller, "account_suspend.html", account=account)

    async def suspend(self, request: Request, caller: Caller, form: Nothing) -> Response:
        """Nothing of the account is served any more."""
        account_id = find_account(request, caller)
        await self._parts.act(caller).set_account_status(account_id, AccountStatus.SUSPENDED)
        return self._return(caller, account_id, "The account is suspended.")

    async def resume(self, request: Request, caller: Caller, form: Nothing) -> Response:
        """The account is served again."""
        account_id = find_account(request, caller)
        await self._parts.act(caller).set_account_status(account_id, AccountStatus.ACTIVE)
        return self._return(caller, account_id, "The account is active again.")

    async def ask_delete(self, request: Request, caller: Caller) -> Response:
        """What deleting would mean."""
        return self._ask_delete(request, caller, await self._get(request, caller))

    async def delete(self, request: Request, caller: Caller, form: Confirmation) -> Response:
        """The account is no more."""
        account = await self._get(request, caller)
        try:
            if form.name != account.name:
                raise InvalidRequest("This is not the name of the account.", param="name")
            await self._parts.act(caller).purge_account(account.account_id)
        except RequestError as error:
            return self._ask_delete(request, caller, account, error)
        caller.require_session().notices.append(f"The account “{account.name}” is deleted.")
        return self._renderer.send_on(f"{PREFIX}/accounts")

    async def rotate_salt(self, request: Request, caller: Caller, form: Nothing) -> Response:
        """No cached prefix of the account can be found any more."""
        account_id = find_account(request, caller)
        await self._parts.act(caller).rotate_cache_salt(account_id)
        return self._return(caller, account_id, "Its cached prefixes cannot be found any more.")

    async def _get(self, request: Request, caller: Caller) -> Account:
        """The account in the path. Raises: `NotFound`."""
        return await self._parts.act(caller).get_account(find_account(request, caller))

    def _return(self, caller: Caller, account_id: AccountId, notice: str) -> Response:
        """Back to the account's page, which says `notice`."""
        caller.require_session().notices.append(notice)
        return self._renderer.send_on(f"{PREFIX}/accounts/{account_id}")

    def _ask(
        self,
        request: Request,
        caller: Caller,
        form: AccountFields,
        error: RequestError | None = None,
    ) -> Response:
        """The form of a new account, filled in as it was."""
        status = 200 if error is None else 400
        return self._renderer.show(
            request, caller, "account_new.html", status=status, form=form, error=error
        )

    def _show(
        self,
        request: Request,
        caller: Caller,
        account: Account,
        form: AccountFields,
        error: RequestError | None = None,
    ) -> Response:
        """The page of an account, its form filled in."""
        status = 200 if error is None else 400
        return self._renderer.show(
            request, caller, "account.html", status=status, account=account, form=form, error=error
        )

    def _ask_delete(
        self, request: Request, caller: Caller, account: Account, error: RequestError | None = None
    ) -> Response:
        """The question whether to delete."""
        status = 200 if error is None else 400
        return self._renderer.show(
            request, caller, "account_delete.html", status=status, account=account, error=error
        )


def _to_json_form(kind: Any, form: AccountFields, **more: Any) -> Any:
    """What a client of the JSON route would have sent. Raises: `InvalidRequest`."""
    try:
        priority = int(form.priority or "0")
    except ValueError:
        raise InvalidRequest("A priority is a whole number.", param="priority") from None
    values = {
        "name": form.name,
        "retention": form.retention,
        "priority": priority,
        "allowed_regions": _split(form.allowed_regions),
        "allowed_jurisdictions": _split(form.allowed_jurisdictions),
        "preferred_regions": _split(form.preferred_regions) or [],
        "preferred_jurisdictions": _split(form.preferred_jurisdictions) or [],
        "allowed_models": _split(form.allowed_models),
        **more,
    }
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"The form does not fit: {error}.") from error


def _to_fields(account: Account) -> AccountFields:
    """The account as its form shows it."""
    return AccountFields(
        name=account.name,
        retention=account.retention,
        priority=str(account.priority),
        allowed_regions=_join(account.allowed_regions),
        allowed_jurisdictions=_join(account.allowed_jurisdictions),
        preferred_regions=", ".join(account.preferred_regions),
        preferred_jurisdictions=", ".join(account.preferred_jurisdictions),
        allowed_models=_join(account.allowed_models),
        is_metered="yes" if account.is_metered else "",
    )


def _split(text: str) -> list[str] | None:
    """The words of a list; None, which is any, when there are none, and `none` stands for none."""
    words = text.replace(",", " ").split()
    if words == [NONE]:
        return []
    return words or None


def _join(words: tuple[str, ...] | None) -> str:
    """The same the other way round."""
    return "" if words is None else ", ".join(words) or NONE
