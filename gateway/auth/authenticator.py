"""From an Authorization header to a principal that may do what the route demands.

The one place where credentials become principals. Owns the order of the checks: credential, its
status and times, its account, the account's status, its permission. Must not know routes.
Read next: `gateway.auth.access`, `gateway.auth.principal_cache`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from contracts.errors import AccountSuspended, Forbidden, Unauthenticated
from contracts.ids import AccountId
from gateway.auth.access import Access, AnyApiToken, Needs
from gateway.auth.bearer import read_bearer
from gateway.auth.principal_cache import PrincipalCache
from gateway.settings import AuthSettings
from gateway.sources import Sources
from tenancy.interfaces import (
    AccountStatus,
    ApiTokenStatus,
    Operator,
    OperatorDirectory,
    Principal,
    Tenancy,
)

INVALID_TOKEN: Final = "Authentication error: the API token is not valid."
Headers = Sequence[tuple[bytes, bytes]]


class Authenticator:
    """Checks tenants' credentials."""

    def __init__(self, cache: PrincipalCache, sources: Sources) -> None:
        """`cache` answers for digests; `sources` tells the time."""
        self._cache = cache
        self._sources = sources

    async def authenticate(
        self, headers: Headers, account_id: AccountId | None, access: Access
    ) -> Principal:
        """The principal behind `headers`, allowed to do what `access` demands.

        Raises: `Unauthenticated`, `Forbidden`, `AccountSuspended`, `StoreUnavailable`.
        """
        value = read_bearer(headers)
        digest = self._cache.digest(value)
        principal = None if digest is None else self._cache.peek(digest)
        if principal is None and digest is not None:
            principal = await self._cache.find(value, digest)
        if principal is None:
            raise Unauthenticated(INVALID_TOKEN)
        self._check_token(principal)
        if account_id is not None and account_id != principal.account_id:
            raise Forbidden("Authentication error: this API token does not cover the account.")
        if principal.account_status is not AccountStatus.ACTIVE:
            raise AccountSuspended("This account is suspended.")
        if type(access) is Needs:
            if access.permission not in principal.permissions:
                raise Forbidden(f"Authentication error: this needs `{access.permission}`.")
        elif type(access) is not AnyApiToken:
            raise Forbidden("Authentication error: no API token opens this route.")
        return principal

    def _check_token(self, principal: Principal) -> None:
        """Raises `Unauthenticated` for a token that is disabled, not valid yet or expired."""
        if principal.status is not ApiTokenStatus.ACTIVE:
            raise Unauthenticated("Authentication error: the API token is disabled.")
        if principal.not_before_unix_s is None and principal.expires_unix_s is None:
            return
        now_s = self._sources.unix_s()
        if principal.not_before_unix_s is not None and now_s < principal.not_before_unix_s:
            raise Unauthenticated("Authentication error: the API token is not valid yet.")
        if principal.expires_unix_s is not None and now_s >= principal.expires_unix_s:
            raise Unauthenticated("Authentication error: the API token has expired.")


class OperatorAuthenticator:
    """Checks operators' credentials, each time at the store: they are few and change rights."""

    def __init__(self, directory: OperatorDirectory) -> None:
        """`directory` knows the operators."""
        self._directory = directory

    async def authenticate(self, headers: Headers) -> Operator:
        """The operator behind `headers`. Raises: `Unauthenticated`, `StoreUnavailable`."""
        operator = await self._directory.find_operator(read_bearer(headers))
        if operator is None:
            raise Unauthenticated("Authentication error: the operator's credential is not valid.")
        return operator


@dataclass(frozen=True, slots=True)
class Authenticators:
    """Both kinds, and the cache whose epoch somebody must follow."""

    api_tokens: Authenticator
    operators: OperatorAuthenticator
    cache: PrincipalCache


def create_authenticators(
    tenancy: Tenancy, settings: AuthSettings, sources: Sources
) -> Authenticators:
    """Authenticators that ask `tenancy`."""
    cache = PrincipalCache(tenancy, settings, sources)
    return Authenticators(Authenticator(cache, sources), OperatorAuthenticator(tenancy), cache)
