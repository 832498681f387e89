"""Tenancy in memory: the double for tests and for trying things out, under the same contract.

Owns its dictionaries and keeps nothing; rules, credentials and digests are the real ones.
"""

from dataclasses import dataclass, replace

from contracts.errors import InvalidRequest, NotFound
from contracts.grant import RetentionClass
from contracts.ids import AccountId, ApiTokenId, OperatorId, RegionId, is_account_id
from tenancy.encryption.cache_salt import derive_cache_salt
from tenancy.encryption.key_ring import KeyRing
from tenancy.interfaces import (
    Account,
    AccountStatus,
    ApiToken,
    ApiTokenStatus,
    IssuedApiToken,
    IssuedOperator,
    Operator,
    Permission,
    Principal,
)
from tenancy.sources import Clock, Randomness, create_id, read_unix_us
from tenancy.tokens.digests import digest_issued, digest_presented, list_presented_digests
from tenancy.tokens.format import CredentialKind, create_credential, create_hint
from tenancy.tokens.lifetime import check_settable, compute_status
from tenancy.validation import (
    check_lifetime,
    check_name,
    check_page_size,
    check_permissions,
    check_regions,
)


@dataclass(frozen=True, slots=True)
class _StoredAccount:
    account: Account
    master_key_version: int


@dataclass(frozen=True, slots=True)
class _StoredApiToken:
    api_token: ApiToken
    """With the status that was set, never `expired`."""
    digest: bytes


class MemoryTenancy:
    """`Tenancy` without a database."""

    def __init__(self, key_ring: KeyRing, clock: Clock, randomness: Randomness) -> None:
        """Starts empty. `clock` gives seconds since 1970."""
        self._key_ring = key_ring
        self._clock = clock
        self._randomness = randomness
        self._accounts: dict[AccountId, _StoredAccount] = {}
        self._api_tokens: dict[ApiTokenId, _StoredApiToken] = {}
        self._operators: dict[bytes, Operator] = {}
        self._epoch = 0

    async def create_account(
        self, name: str, *, allowed_regions: tuple[RegionId, ...] | None = None
    ) -> Account:
        """The new account. Raises: `InvalidRequest`."""
        account = Account(
            account_id=AccountId(create_id(self._randomness)),
            name=check_name(name),
            status=AccountStatus.ACTIVE,
            created_unix_s=self._read_unix_s(),
            cache_salt_generation=1,
            retention=RetentionClass.STANDARD,
            allowed_regions=check_regions(allowed_regions),
        )
        return self._keep_account(account)

    async def get_account(self, account_id: AccountId) -> Account:
        """Raises: `NotFound`."""
        return self._find_account(account_id).account

    async def list_accounts(
        self, *, limit: int = 100, after: AccountId | None = None
    ) -> list[Account]:
        """At most `limit` accounts in order of id, those after `after`."""
        if after is not None and not is_account_id(after):
            raise InvalidRequest("`after` is not an account id.", param="after")
        later = sorted(key for key in self._accounts if after is None or key > after)
        return [self._accounts[key].account for key in later[: check_page_size(limit)]]

    async def set_account_status(self, account_id: AccountId, status: AccountStatus) -> Account:
        """Raises: `NotFound`."""
        stored = self._find_account(account_id)
        self._epoch += 1
        self._accounts[account_id] = replace(stored, account=replace(stored.account, status=status))
        return self._accounts[account_id].account

    async def rotate_cache_salt(self, account_id: AccountId) -> Account:
        """Raises: `NotFound`."""
        account = self._find_account(account_id).account
        self._epoch += 1
        generation = account.cache_salt_generation + 1
        return self._keep_account(replace(account, cache_salt_generation=generation))

    async def create_api_token(
        self,
        account_id: AccountId,
        name: str,
        permissions: frozenset[Permission],
        *,
        not_before_unix_s: int | None = None,
        expires_unix_s: int | None = None,
    ) -> IssuedApiToken:
        """Raises: `NotFound` (account), `InvalidRequest`."""
        check_lifetime(not_before_unix_s, expires_unix_s)
        value = create_credential(CredentialKind.API_TOKEN, self._randomness)
        api_token = ApiToken(
            api_token_id=ApiTokenId(create_id(self._randomness)),
            account_id=account_id,
            name=check_name(name),
            hint=create_hint(CredentialKind.API_TOKEN, value),
            status=ApiTokenStatus.ACTIVE,
            permissions=check_permissions(permissions),
            issued_unix_s=self._read_unix_s(),
            not_before_unix_s=not_before_unix_s,
            expires_unix_s=expires_unix_s,
        )
        self._find_account(account_id)
        digest = digest_issued(value, self._key_ring.peppers.current)
        self._api_tokens[api_token.api_token_id] = _StoredApiToken(api_token, digest)
        return IssuedApiToken(api_token=self._with_status_now(api_token), value=value)

    async def get_api_token(self, account_id: AccountId, api_token_id: ApiTokenId) -> ApiToken:
        """Raises: `NotFound`, also when the token belongs to another account."""
        return self._with_status_now(self._find_api_token(account_id, api_token_id).api_token)

    async def list_api_tokens(self, account_id: AccountId) -> list[ApiToken]:
        """All tokens of the account, oldest first. Raises: `NotFound` (account)."""
        self._find_account(account_id)
        return [
            self._with_status_now(stored.api_token)
            for stored in self._api_tokens.values()
            if stored.api_token.account_id == account_id
        ]

    async def set_api_token_status(
        self, account_id: AccountId, api_token_id: ApiTokenId, status: ApiTokenStatus
    ) -> ApiToken:
        """Raises: `NotFound`, `InvalidRequest`."""
        check_settable(status)
        stored = self._find_api_token(account_id, api_token_id)
        self._epoch += 1
        api_token = replace(stored.api_token, status=status)
        self._api_tokens[api_token_id] = replace(stored, api_token=api_token)
        return self._with_status_now(api_token)

    async def delete_api_token(self, account_id: AccountId, api_token_id: ApiTokenId) -> None:
        """Raises: `NotFound`."""
        self._find_api_token(account_id, api_token_id)
        self._epoch += 1
        del self._api_tokens[api_token_id]

    def digest_api_token(self, value: str) -> bytes | None:
        """Digest under the current pepper, or None when shape or checksum is wrong."""
        return digest_presented(CredentialKind.API_TOKEN, value, self._key_ring.peppers.current)

    async def find_principal(self, value: str) -> Principal | None:
        """The principal whose token has this value, whatever its status; None when unknown."""
        digests = list_presented_digests(CredentialKind.API_TOKEN, value, self._key_ring.peppers)
        for stored in self._api_tokens.values():
            if stored.digest in digests:
                return self._create_principal(stored.api_token)
        return None

    async def read_epoch(self) -> int:
        """Grows with every change that could make a cached principal wrong."""
        return self._epoch

    async def create_operator(self, name: str) -> IssuedOperator:
        """Raises: `InvalidRequest`."""
        value = create_credential(CredentialKind.OPERATOR, self._randomness)
        operator = Operator(
            operator_id=OperatorId(create_id(self._randomness)),
            name=check_name(name),
            created_unix_s=self._read_unix_s(),
        )
        digest = digest_issued(value, self._key_ring.peppers.current)
        self._operators[digest] = operator
        return IssuedOperator(operator=operator, value=value)

    async def find_operator(self, value: str) -> Operator | None:
        """The operator whose credential has this value; None when unknown or malformed."""
        digests = list_presented_digests(CredentialKind.OPERATOR, value, self._key_ring.peppers)
        found = (self._operators.get(digest) for digest in digests)
        return next((operator for operator in found if operator is not None), None)

    async def list_operators(self) -> list[Operator]:
        """All operators, oldest first."""
        return list(self._operators.values())

    async def close(self) -> None:
        """Holds nothing that needs releasing."""

    def _read_unix_s(self) -> int:
        return read_unix_us(self._clock) // 1_000_000

    def _keep_account(self, account: Account) -> Account:
        """Stores `account`, its salt from the current master key."""
        version = self._key_ring.master_keys.current_version
        self._accounts[account.account_id] = _StoredAccount(account, version)
        return account

    def _find_account(self, account_id: AccountId) -> _StoredAccount:
        stored = self._accounts.get(account_id)
        if stored is None:
            raise NotFound("There is no account with this id.", param="account_id")
        return stored

    def _find_api_token(self, account_id: AccountId, api_token_id: ApiTokenId) -> _StoredApiToken:
        stored = self._api_tokens.get(api_token_id)
        if stored is None or stored.api_token.account_id != account_id:
            raise NotFound("The account has no API token with this id.", param="token_id")
        return stored

    def _with_status_now(self, api_token: ApiToken) -> ApiToken:
        now_unix_us = read_unix_us(self._clock)
        status = compute_status(api_token.status, api_token.expires_unix_s, now_unix_us)
        return replace(api_token, status=status)

    def _create_principal(self, api_token: ApiToken) -> Principal:
        stored = self._find_account(api_token.account_id)
        account = stored.account
        return Principal(
            api_token_id=api_token.api_token_id,
            account_id=account.account_id,
            status=api_token.status,
            account_status=account.status,
            permissions=api_token.permissions,
            not_before_unix_s=api_token.not_before_unix_s,
            expires_unix_s=api_token.expires_unix_s,
            retention=account.retention,
            allowed_regions=account.allowed_regions,
            priority=0,
            cache_salt=derive_cache_salt(
                self._key_ring.master_keys.get(stored.master_key_version),
                account.account_id,
                account.cache_salt_generation,
            ),
        )
