"""The playground: a page to try a model as an account does.

Its requests need an API token of the account like any other: one that somebody pastes, or one made
here, which lives an hour, is in the audit log and never leaves this process. Must not know how
requests are served. Read next: `gateway.console.playground_requests`.
"""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from contracts.errors import NotFound, RequestError, ServiceError
from contracts.fleet import Task
from contracts.ids import AccountId, is_account_id
from gateway.auth.caller import Caller
from gateway.console.page_table import PREFIX, PageTable
from gateway.console.parts import ConsoleParts
from gateway.console.playground_requests import RUN_PATH
from gateway.console.posted_form import PostedForm, PostedFormReader
from tenancy.permissions import Permission

LIFE_S: Final = 3600
_MAX_ACCOUNTS: Final = 500


class AccountChoice(PostedForm, frozen=True, kw_only=True):
    """For whom to make a token."""

    account_id: str


class PlaygroundPage:
    """The page, and the tokens that it makes."""

    def __init__(self, parts: ConsoleParts) -> None:
        """Every operator acts with an administration of their own."""
        self._parts = parts

    def add_to(self, table: PageTable) -> None:
        """Its routes."""
        reader = PostedFormReader(AccountChoice)
        table.show("playground_page", "/playground", self.show)
        table.act("playground_token", "/playground/token", reader, self.create_token)

    async def show(self, request: Request, caller: Caller) -> Response:
        """The page, for the account that the query names."""
        return await self._show(request, caller, request.query_params.get("account_id", ""))

    async def create_token(self, request: Request, caller: Caller, form: AccountChoice) -> Response:
        """Back to the page, with a token of the account that only this session has."""
        operator, session = caller.operator, caller.require_session()
        assert operator is not None
        try:
            account_id = _to_account_id(form.account_id)
            issued = await self._parts.act(caller).create_api_token(
                account_id,
                f"Playground of {operator.name}"[:100],
                frozenset({Permission.WORKERS_AI_READ}),
                expires_unix_s=int(self._parts.sources.unix_s()) + LIFE_S,
            )
        except RequestError as error:
            return await self._show(request, caller, form.account_id, error)
        session.playground_tokens[account_id] = issued.value
        return self._parts.renderer.send_on(f"{PREFIX}/playground?account_id={account_id}")

    async def _show(
        self,
        request: Request,
        caller: Caller,
        account_id: str,
        error: ServiceError | None = None,
    ) -> Response:
        """The page."""
        administration = self._parts.act(caller)
        account = None
        if account_id and error is None:
            try:
                account = await administration.get_account(_to_account_id(account_id))
            except RequestError as wrong:
                error = wrong
        models = [
            card.name
            for card in self._parts.fleet.roster.list_models()
            if card.task == Task.TEXT_GENERATION
        ]
        tokens = caller.require_session().playground_tokens
        return self._parts.renderer.show(
            request,
            caller,
            "playground.html",
            status=200 if error is None else 400,
            accounts=await administration.list_accounts(limit=_MAX_ACCOUNTS),
            account=account,
            models=models,
            has_token=account is not None and account.account_id in tokens,
            run_path=RUN_PATH,
            error=error,
        )


def _to_account_id(text: str) -> AccountId:
    """The id that `text` is. Raises: `NotFound`."""
    if not is_account_id(text):
        raise NotFound("There is no account with this id.", param="account_id")
    return AccountId(text)
