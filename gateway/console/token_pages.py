"""An account's API tokens in the console: made, rolled, disabled, deleted.

A new value is shown on one page, once. Owns the form as browsers post it; tenancy checks what it
grants. Read next: `gateway.api.policy_forms`, `tenancy.tokens.grants`.
"""

from datetime import UTC, datetime
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from contracts.errors import InvalidRequest, RequestError
from contracts.ids import AccountId, ApiTokenId
from gateway.api.forms import read_time_us
from gateway.api.pages import find_account
from gateway.api.policy_forms import ConditionForm, RequestIp, parse_condition
from gateway.auth.caller import Caller
from gateway.console.page_table import PREFIX, PageTable
from gateway.console.parts import ConsoleParts
from gateway.console.posted_form import Nothing, PostedForm, PostedFormReader
from tenancy.interfaces import ApiTokenStatus, IssuedApiToken
from tenancy.permissions import MODEL_PERMISSIONS, PERMISSION_GROUPS, Permission
from tenancy.policies import EVERYTHING, Effect, Policies, Policy

_TOKENS: Final = "/accounts/{account_id}/tokens"
_TOKEN: Final = _TOKENS + "/{token_id}"


class TokenFields(PostedForm, frozen=True, kw_only=True):
    """What can be said of a new token, as text."""

    name: str
    permissions: tuple[str, ...] = ()
    models: str = ""
    """Separated by commas or spaces; empty means every one. Of inference only."""
    networks: str = ""
    expires_on: str = ""


EMPTY: Final = TokenFields(name="", permissions=(Permission.WORKERS_AI_READ,))


class TokenPages:
    """Reads and changes API tokens."""

    def __init__(self, parts: ConsoleParts) -> None:
        """Every operator acts with an administration of their own."""
        self._parts = parts
        self._renderer = parts.renderer

    def add_to(self, table: PageTable) -> None:
        """Their routes."""
        nothing = PostedFormReader(Nothing)
        table.show("tokens", _TOKENS, self.list_all)
        table.act("token_create", _TOKENS, PostedFormReader(TokenFields), self.create)
        table.show("token", _TOKEN, self.show)
        table.act("token_roll", _TOKEN + "/roll", nothing, self.roll)
        table.act("token_disable", _TOKEN + "/disable", nothing, self.disable)
        table.act("token_enable", _TOKEN + "/enable", nothing, self.enable)
        table.act("token_delete", _TOKEN + "/delete", nothing, self.delete)

    async def list_all(self, request: Request, caller: Caller) -> Response:
        """Every token of the account, and the form of a new one."""
        return await self._list(request, caller, EMPTY)

    async def create(self, request: Request, caller: Caller, form: TokenFields) -> Response:
        """On to the new token, or the form again with the reason."""
        account_id = find_account(request, caller)
        try:
            networks = ConditionForm(request_ip=RequestIp(allowed=tuple(_split(form.networks))))
            issued = await self._parts.act(caller).create_api_token(
                account_id,
                form.name,
                _to_policies(form),
                condition=parse_condition(networks),
                expires_unix_s=_read_day_end(form.expires_on),
            )
        except RequestError as error:
            return await self._list(request, caller, form, error)
        return self._reveal(caller, account_id, issued)

    async def show(self, request: Request, caller: Caller) -> Response:
        """One token; its value if it is new and was not shown yet."""
        account_id, token_id = _find(request, caller)
        administration = self._parts.act(caller)
        account = await administration.get_account(account_id)
        token = await administration.get_api_token(account_id, token_id)
        value = caller.require_session().shown_once.pop(token_id, None)
        return self._renderer.show(
            request,
            caller,
            "token.html",
            account=account,
            token=token,
            value=None if value is None else value.reveal(),
        )

    async def roll(self, request: Request, caller: Caller, form: Nothing) -> Response:
        """The token has a new value; the old one is void."""
        where = _find(request, caller)
        issued = await self._parts.act(caller).roll_api_token(*where)
        return self._reveal(caller, where[0], issued)

    async def disable(self, request: Request, caller: Caller, form: Nothing) -> Response:
        """The token is refused everywhere within two seconds."""
        return await self._set(request, caller, ApiTokenStatus.DISABLED, "is disabled")

    async def enable(self, request: Request, caller: Caller, form: Nothing) -> Response:
        """The token can be used again."""
        return await self._set(request, caller, ApiTokenStatus.ACTIVE, "is active again")

    async def delete(self, request: Request, caller: Caller, form: Nothing) -> Response:
        """The token is no more."""
        where = _find(request, caller)
        administration = self._parts.act(caller)
        name = (await administration.get_api_token(*where)).name
        await administration.delete_api_token(*where)
        caller.require_session().notices.append(f"The API token “{name}” is deleted.")
        return self._renderer.send_on(_format_path(where[0]))

    async def _set(
        self, request: Request, caller: Caller, status: ApiTokenStatus, said: str
    ) -> Response:
        """Back to the token, whose status is another."""
        where = _find(request, caller)
        token = await self._parts.act(caller).set_api_token_status(*where, status)
        caller.require_session().notices.append(f"The API token “{token.name}” {said}.")
        return self._renderer.send_on(_format_path(*where))

    def _reveal(self, caller: Caller, account_id: AccountId, issued: IssuedApiToken) -> Response:
        """On to the page that shows the value once."""
        token_id = issued.api_token.api_token_id
        caller.require_session().shown_once[token_id] = issued.value
        return self._renderer.send_on(_format_path(account_id, token_id))

    async def _list(
        self,
        request: Request,
        caller: Caller,
        form: TokenFields,
        error: RequestError | None = None,
    ) -> Response:
        """The page, its form filled in."""
        administration = self._parts.act(caller)
        account = await administration.get_account(find_account(request, caller))
        tokens = await administration.list_api_tokens(account.account_id)
        return self._renderer.show(
            request,
            caller,
            "tokens.html",
            status=200 if error is None else 400,
            account=account,
            tokens=tokens,
            groups=PERMISSION_GROUPS,
            form=form,
            error=error,
        )


def _find(request: Request, caller: Caller) -> tuple[AccountId, ApiTokenId]:
    """The token that the path names."""
    return find_account(request, caller), ApiTokenId(request.path_params["token_id"])


def _format_path(account_id: AccountId, token_id: ApiTokenId | None = None) -> str:
    path = f"{PREFIX}/accounts/{account_id}/tokens"
    return path if token_id is None else f"{path}/{token_id}"


def _to_policies(form: TokenFields) -> Policies:
    """What the form grants; models narrow those permissions that are about models.

    Raises: `InvalidRequest`.
    """
    try:
        wanted = frozenset(Permission(name) for name in form.permissions)
    except ValueError:
        raise InvalidRequest("There is no such permission.", param="permissions") from None
    if not wanted:
        raise InvalidRequest("A token needs at least one permission.", param="permissions")
    models = tuple(_split(form.models)) or (EVERYTHING,)
    parts = ((wanted & MODEL_PERMISSIONS, models), (wanted - MODEL_PERMISSIONS, (EVERYTHING,)))
    return tuple(Policy(Effect.ALLOW, held, where) for held, where in parts if held)


def _read_day_end(text: str) -> int | None:
    """The last second of a day; None when none is named. Raises: `InvalidRequest`."""
    time_us = read_time_us(text, "expires_on")
    if time_us is None:
        return None
    day = datetime.fromtimestamp(time_us // 1_000_000, UTC)
    return int(day.replace(hour=23, minute=59, second=59).timestamp())


def _split(text: str) -> list[str]:
    """The words of a list."""
    return text.replace(",", " ").split()
