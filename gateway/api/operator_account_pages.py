"""Accounts over the operators' port: made, changed, suspended, limited and purged.

Owns the mapping from routes to tenancy's administration, which checks and records everything.
Read next: `gateway.api.account_forms`, `gateway.api.money_forms`.
"""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from contracts.ids import AccountId, ApiTokenId, ModelName
from contracts.quotas import QuotaScope
from gateway.api.account_forms import (
    ACCOUNT_CREATE,
    ACCOUNT_UPDATE,
    create_account,
    to_account_change,
    to_operator_account,
)
from gateway.api.forms import NO_FORM, read_number, refuse_unknown_query
from gateway.api.money_forms import QUOTA_SET, to_quota_fields, to_quota_limits
from gateway.api.pages import find_account, reply, reply_cursor
from gateway.api.query_fields import Limit, QueryField
from gateway.api.token_forms import DeletedObject
from gateway.auth.caller import Caller
from tenancy.administration import Administration, Administrations

DEFAULT_LIMIT: Final = 100
MAX_LIMIT: Final = 1000
ACCOUNT_QUERY: Final = (QueryField("limit", Limit), QueryField("cursor", str))
QUOTA_QUERY: Final = (QueryField("api_token_id", str), QueryField("model", str))


class OperatorAccountPages:
    """Reads and changes any account."""

    def __init__(self, administrations: Administrations) -> None:
        """Each operator acts with an administration of their own."""
        self._administrations = administrations

    async def create(self, request: Request, caller: Caller) -> Response:
        """The new account."""
        form = await ACCOUNT_CREATE.read(request)
        account = await create_account(self._act(caller), form)
        return reply(to_operator_account(account))

    async def list_all(self, request: Request, caller: Caller) -> Response:
        """Accounts in order of their ids, those after `cursor`."""
        refuse_unknown_query(request, {"limit", "cursor"})
        query = request.query_params
        limit = read_number(query.get("limit"), "limit", DEFAULT_LIMIT, MAX_LIMIT)
        cursor = query.get("cursor")
        accounts = await self._act(caller).list_accounts(
            limit=limit, after=AccountId(cursor) if cursor else None
        )
        after = accounts[-1].account_id if len(accounts) == limit else ""
        return reply_cursor([to_operator_account(account) for account in accounts], limit, after)

    async def get(self, request: Request, caller: Caller) -> Response:
        """One account."""
        account = await self._act(caller).get_account(find_account(request, caller))
        return reply(to_operator_account(account))

    async def update(self, request: Request, caller: Caller) -> Response:
        """The account with what the body names changed; it holds at every gateway within 2 s."""
        change = to_account_change(await ACCOUNT_UPDATE.read(request))
        account = await self._act(caller).change_account(find_account(request, caller), change)
        return reply(to_operator_account(account))

    async def purge(self, request: Request, caller: Caller) -> Response:
        """The id of an account that is no more; it must have been suspended."""
        account_id = find_account(request, caller)
        await self._act(caller).purge_account(account_id)
        return reply(DeletedObject(account_id))

    async def rotate_cache_salt(self, request: Request, caller: Caller) -> Response:
        """The account, none of whose cached prefixes can be found any more."""
        await NO_FORM.read(request)
        account = await self._act(caller).rotate_cache_salt(find_account(request, caller))
        return reply(to_operator_account(account))

    async def list_quotas(self, request: Request, caller: Caller) -> Response:
        """All limits of the account, its tokens and models."""
        quotas = await self._act(caller).list_quotas(find_account(request, caller))
        return reply([to_quota_fields(quota) for quota in quotas])

    async def set_quota(self, request: Request, caller: Caller) -> Response:
        """The limits of one scope, all of them replaced."""
        form = await QUOTA_SET.read(request)
        scope = QuotaScope(find_account(request, caller), form.api_token_id, form.model)
        return reply(
            to_quota_fields(await self._act(caller).set_quota(scope, to_quota_limits(form)))
        )

    async def delete_quota(self, request: Request, caller: Caller) -> Response:
        """The scope that `api_token_id` and `model` of the query name is without limits."""
        refuse_unknown_query(request, {"api_token_id", "model"})
        query = request.query_params
        token_id, model = query.get("api_token_id"), query.get("model")
        scope = QuotaScope(
            find_account(request, caller),
            ApiTokenId(token_id) if token_id else None,
            ModelName(model) if model else None,
        )
        await self._act(caller).delete_quota(scope)
        return reply(DeletedObject(scope.api_token_id or scope.account_id))

    def _act(self, caller: Caller) -> Administration:
        return self._administrations.act_as(caller.to_actor())
