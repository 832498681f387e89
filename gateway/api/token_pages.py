"""API tokens over HTTP: their life from creation to deletion, for tenants and operators alike.

Owns which account is meant: the one in the path, else that of the calling token. What may be
granted is tenancy's to decide. Source: Cloudflare's API reference (API tokens).
Read next: `gateway.api.token_forms`, `tenancy.tokens.grants`.
"""

from typing import Final

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from contracts.ids import AccountId, ApiTokenId
from gateway.api.forms import MAX_PAGE, NO_FORM, format_unix_s, read_choice, read_number
from gateway.api.pages import find_account, reply, reply_page
from gateway.api.query_fields import Direction, Flag, QueryField, list_paging
from gateway.api.token_forms import (
    TOKEN_CREATE,
    TOKEN_UPDATE,
    DeletedObject,
    VerifiedToken,
    to_change,
    to_group_fields,
    to_token_fields,
)
from gateway.auth.caller import Caller
from gateway.errors import Notice
from tenancy.administration import Administration, Administrations
from tenancy.interfaces import ApiTokenStatus
from tenancy.permissions import PERMISSION_GROUPS, Permission

DEFAULT_PER_PAGE: Final = 100
MAX_PER_PAGE: Final = 500
_VALID: Final = Notice(10000, "This API Token is valid and active")
LIST_QUERY: Final = (
    *list_paging(MAX_PER_PAGE),
    QueryField("direction", Direction),
    QueryField("include_expired", Flag),
)
GROUP_QUERY: Final = (QueryField("name", str), QueryField("scope", str))


class TokenPages:
    """Reads and changes API tokens."""

    def __init__(self, administrations: Administrations) -> None:
        """Each caller acts with an administration of its own."""
        self._administrations = administrations

    async def verify(self, request: Request, caller: Caller) -> Response:
        """The token that asks, which is active: any other has been refused before."""
        principal = caller.require_principal()
        token = VerifiedToken(
            principal.api_token_id,
            principal.status,
            format_unix_s(principal.not_before_unix_s),
            format_unix_s(principal.expires_unix_s),
        )
        return reply(token, _VALID)

    async def list_groups(self, request: Request, caller: Caller) -> Response:
        """Every permission group, filtered by `name` and `scope`."""
        name, scope = request.query_params.get("name"), request.query_params.get("scope")
        held = frozenset(Permission)
        if caller.principal is not None:
            held = caller.principal.permissions
        return reply(
            [
                to_group_fields(group, is_selectable=group.permission in held)
                for group in PERMISSION_GROUPS
                if (not name or group.permission == name) and (not scope or scope in group.scopes)
            ]
        )

    async def list_all(self, request: Request, caller: Caller) -> Response:
        """One page of the account's tokens."""
        query = request.query_params
        page = read_number(query.get("page"), "page", 1, MAX_PAGE)
        per_page = read_number(query.get("per_page"), "per_page", DEFAULT_PER_PAGE, MAX_PER_PAGE)
        direction = read_choice(query.get("direction"), "direction", ("asc", "desc"))
        with_expired = read_choice(
            query.get("include_expired"), "include_expired", ("true", "false")
        )
        tokens = await self._act(caller).list_api_tokens(find_account(request, caller))
        if with_expired == "false":
            tokens = [token for token in tokens if token.status is not ApiTokenStatus.EXPIRED]
        if direction == "desc":
            tokens.reverse()
        shown = tokens[(page - 1) * per_page : page * per_page]
        return reply_page([to_token_fields(token) for token in shown], page, per_page, len(tokens))

    async def create(self, request: Request, caller: Caller) -> Response:
        """The new token with its value, which is shown this once."""
        account_id = find_account(request, caller)
        wanted = to_change(await TOKEN_CREATE.read(request), account_id)
        assert wanted.name is not UNSET
        assert wanted.policies is not UNSET
        assert wanted.condition is not UNSET
        assert wanted.not_before_unix_s is not UNSET
        assert wanted.expires_unix_s is not UNSET
        issued = await self._act(caller).create_api_token(
            account_id,
            wanted.name,
            wanted.policies,
            condition=wanted.condition,
            not_before_unix_s=wanted.not_before_unix_s,
            expires_unix_s=wanted.expires_unix_s,
        )
        return reply(to_token_fields(issued.api_token, issued.value.reveal()))

    async def get(self, request: Request, caller: Caller) -> Response:
        """One token."""
        where = _find_token(request, caller)
        return reply(to_token_fields(await self._act(caller).get_api_token(*where)))

    async def update(self, request: Request, caller: Caller) -> Response:
        """The token with other rights, times or another name."""
        account_id, token_id = _find_token(request, caller)
        change = to_change(await TOKEN_UPDATE.read(request), account_id)
        changed = await self._act(caller).change_api_token(account_id, token_id, change)
        return reply(to_token_fields(changed))

    async def roll(self, request: Request, caller: Caller) -> Response:
        """The token's new value, bare; the old one is void."""
        await NO_FORM.read(request)
        where = _find_token(request, caller)
        return reply((await self._act(caller).roll_api_token(*where)).value.reveal())

    async def delete(self, request: Request, caller: Caller) -> Response:
        """The id of a token that is no more."""
        account_id, token_id = _find_token(request, caller)
        await self._act(caller).delete_api_token(account_id, token_id)
        return reply(DeletedObject(token_id))

    def _act(self, caller: Caller) -> Administration:
        return self._administrations.act_as(caller.to_actor())


def _find_token(request: Request, caller: Caller) -> tuple[AccountId, ApiTokenId]:
    """The token that the path names, in the account that is meant."""
    return find_account(request, caller), ApiTokenId(request.path_params["token_id"])
