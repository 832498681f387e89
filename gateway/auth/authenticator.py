"""From an Authorization header to a principal that may do what the route demands.

The one place where credentials become principals. Owns the order of the checks: credential, its
status and times, where it comes from, its account, the account's status, its permission. Must not
know routes.
Read next: `gateway.auth.access`, `gateway.auth.principal_cache`.
"""

from collections.abc import Sequence
from typing import Final

from contracts.errors import AccountSuspended, AddressNotAllowed, Forbidden, Unauthenticated
from contracts.ids import AccountId
from gateway.auth.access import Access, AnyApiToken, Needs, NeedsForOwn
from gateway.auth.bearer import read_api_token, read_bearer
from gateway.auth.client_address import ClientAddresses
from gateway.auth.failed_attempts import FailedAttempts
from gateway.auth.principal_cache import PrincipalCache
from gateway.auth.token_uses import TokenUses
from gateway.sources import Sources
from tenancy.interfaces import (
    AccountStatus,
    ApiTokenStatus,
    Operator,
    OperatorDirectory,
    Principal,
)
from tenancy.policies import Address

INVALID_TOKEN: Final = "Authentication error: the API token is not valid."
Headers = Sequence[tuple[bytes, bytes]]


class Authenticator:
    """Checks tenants' credentials."""

    def __init__(
        self,
        cache: PrincipalCache,
        addresses: ClientAddresses,
        failures: FailedAttempts,
        uses: TokenUses,
        sources: Sources,
    ) -> None:
        """`cache` answers for digests, `uses` is told who got in; `sources` tells the time."""
        self._cache = cache
        self._addresses = addresses
        self._failures = failures
        self._uses = uses
        self._sources = sources

    async def authenticate(
        self,
        headers: Headers,
        account_id: AccountId | None,
        access: Access,
        peer: str | None = None,
    ) -> Principal:
        """The principal behind `headers`, allowed to do what `access` demands.

        `peer` is the connection's other end; a token that is bound to addresses needs one.
        Raises: `Unauthenticated`, `Forbidden`, `AddressNotAllowed`, `AccountSuspended`,
        `RateLimited`,
        `StoreUnavailable`.
        """
        value = read_api_token(headers)
        digest = self._cache.digest(value)
        principal = self._cache.peek(digest)
        if principal is None:
            principal = await self._find(value, digest, self._addresses.find(peer, headers))
        self._check_token(principal)
        condition = principal.condition
        if condition is not None and not condition.admits(self._addresses.find(peer, headers)):
            raise AddressNotAllowed("This API token may not be used from your address.")
        if account_id is not None and account_id != principal.account_id:
            raise Forbidden("Authentication error: this API token does not cover the account.")
        if principal.account_status is not AccountStatus.ACTIVE:
            raise AccountSuspended("This account is suspended.")
        if type(access) is Needs or type(access) is NeedsForOwn:
            if access.permission not in principal.permissions:
                raise Forbidden(f"Authentication error: this needs `{access.permission}`.")
        elif type(access) is not AnyApiToken:
            raise Forbidden("Authentication error: no API token opens this route.")
        self._uses.note(principal.api_token_id)
        return principal

    async def _find(self, value: str, digest: bytes, address: Address | None) -> Principal:
        """The principal of a credential that is not known here; whoever gets too many wrong is
        not heard, unless this one was good before.
        """
        if not self._cache.was_good(digest):
            self._failures.check(address)
        principal = await self._cache.find(value, digest)
        if principal is None:
            self._failures.count(address)
            raise Unauthenticated(INVALID_TOKEN)
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

    def __init__(
        self, directory: OperatorDirectory, addresses: ClientAddresses, failures: FailedAttempts
    ) -> None:
        """`directory` knows the operators."""
        self._directory = directory
        self._addresses = addresses
        self._failures = failures

    async def authenticate(self, headers: Headers, peer: str | None = None) -> Operator:
        """The operator behind `headers`; `peer` is the connection's other end.

        Raises: `Unauthenticated`, `RateLimited`, `StoreUnavailable`.
        """
        credential = read_bearer(headers, "operator's credential")
        return await self.check(credential, self._addresses.find(peer, headers))

    async def check(self, value: str, address: Address | None) -> Operator:
        """The operator whose credential has this value.

        Raises: `Unauthenticated`, `RateLimited`, `StoreUnavailable`.
        """
        self._failures.check(address)
        operator = await self._directory.find_operator(value)
        if operator is None:
            self._failures.count(address)
            raise Unauthenticated("Authentication error: the operator's credential is not valid.")
        return operator
