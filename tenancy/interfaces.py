"""What the gateway and the CLI may ask of tenancy, and the values that come back.

Implemented twice: on SQLAlchemy (`tenancy.directory`) and in memory (`tenancy.memory`), both
under the same contract tests. Must not know HTTP. Times are seconds since 1970, UTC.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from contracts.grant import RetentionClass
from contracts.ids import AccountId, ApiTokenId, OperatorId, RegionId
from contracts.settings import Secret


class Permission(StrEnum):
    """Rights a credential can hold; the values are the permission groups' public names."""

    WORKERS_AI_READ = "Workers AI Read"
    """Inference and the model list."""
    WORKERS_AI_WRITE = "Workers AI Write"
    ACCOUNT_SETTINGS_READ = "Account Settings Read"
    API_TOKENS_READ = "API Tokens Read"
    API_TOKENS_WRITE = "API Tokens Write"


class ApiTokenStatus(StrEnum):
    """State of a credential; `expired` is computed from its times."""

    ACTIVE = "active"
    DISABLED = "disabled"
    EXPIRED = "expired"


class AccountStatus(StrEnum):
    """State of a tenant; a suspended one is refused everywhere."""

    ACTIVE = "active"
    SUSPENDED = "suspended"


@dataclass(frozen=True, slots=True)
class Account:
    """A tenant."""

    account_id: AccountId
    name: str
    status: AccountStatus
    created_unix_s: int
    cache_salt_generation: int
    retention: RetentionClass
    allowed_regions: tuple[RegionId, ...] | None
    """Regions that may compute for it: None means any, an empty tuple none at all."""


@dataclass(frozen=True, slots=True)
class ApiToken:
    """A tenant's credential without its value."""

    api_token_id: ApiTokenId
    account_id: AccountId
    name: str
    hint: str
    """The first characters of the value, enough to recognise it in a list."""
    status: ApiTokenStatus
    permissions: frozenset[Permission]
    issued_unix_s: int
    not_before_unix_s: int | None
    expires_unix_s: int | None


@dataclass(frozen=True, slots=True)
class IssuedApiToken:
    """A credential at the only moment when its value is known."""

    api_token: ApiToken
    value: Secret


@dataclass(frozen=True, slots=True)
class Principal:
    """Who is asking: an API token and what the gateway needs to know of its account.

    A snapshot that may be cached as long as `ApiTokenDirectory.read_epoch` stays the same; the
    times are checked at each use. `status` is that of the stored token, never `expired`.
    """

    api_token_id: ApiTokenId
    account_id: AccountId
    status: ApiTokenStatus
    account_status: AccountStatus
    permissions: frozenset[Permission]
    not_before_unix_s: int | None
    expires_unix_s: int | None
    retention: RetentionClass
    allowed_regions: tuple[RegionId, ...] | None
    """None means any, an empty tuple none at all."""
    priority: int
    cache_salt: bytes = field(repr=False)
    """HKDF(master key, account id, salt generation); 32 bytes."""


@dataclass(frozen=True, slots=True)
class Operator:
    """A person or program that runs the platform."""

    operator_id: OperatorId
    name: str
    created_unix_s: int


@dataclass(frozen=True, slots=True)
class IssuedOperator:
    """An operator at the only moment when the value of its credential is known."""

    operator: Operator
    value: Secret


class AccountDirectory(Protocol):
    """Accounts."""

    async def create_account(
        self, name: str, *, allowed_regions: tuple[RegionId, ...] | None = None
    ) -> Account:
        """The new account. Raises: `InvalidRequest` for an empty or overlong name."""
        ...

    async def get_account(self, account_id: AccountId) -> Account:
        """Raises: `NotFound`."""
        ...

    async def list_accounts(
        self, *, limit: int = 100, after: AccountId | None = None
    ) -> list[Account]:
        """At most `limit` accounts in order of id, those after `after`."""
        ...

    async def set_account_status(self, account_id: AccountId, status: AccountStatus) -> Account:
        """Suspends or resumes; takes effect with the next epoch. Raises: `NotFound`."""
        ...

    async def rotate_cache_salt(self, account_id: AccountId) -> Account:
        """Makes every cached prefix of the account unreachable. Raises: `NotFound`."""
        ...


class ApiTokenDirectory(Protocol):
    """API tokens."""

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
        ...

    async def get_api_token(self, account_id: AccountId, api_token_id: ApiTokenId) -> ApiToken:
        """Raises: `NotFound`, also when the token belongs to another account."""
        ...

    async def list_api_tokens(self, account_id: AccountId) -> list[ApiToken]:
        """All tokens of the account, oldest first. Raises: `NotFound` (account)."""
        ...

    async def set_api_token_status(
        self, account_id: AccountId, api_token_id: ApiTokenId, status: ApiTokenStatus
    ) -> ApiToken:
        """Enables or disables; `expired` cannot be set. Raises: `NotFound`, `InvalidRequest`."""
        ...

    async def delete_api_token(self, account_id: AccountId, api_token_id: ApiTokenId) -> None:
        """Raises: `NotFound`."""
        ...

    def digest_api_token(self, value: str) -> bytes | None:
        """Digest under the current pepper, or None when shape or checksum is wrong: no I/O."""
        ...

    async def find_principal(self, value: str) -> Principal | None:
        """The principal whose token has this value, whatever its status; None when unknown."""
        ...

    async def read_epoch(self) -> int:
        """Grows with every change that could make a cached principal wrong."""
        ...


class OperatorDirectory(Protocol):
    """Operators."""

    async def create_operator(self, name: str) -> IssuedOperator:
        """Raises: `InvalidRequest`."""
        ...

    async def find_operator(self, value: str) -> Operator | None:
        """The operator whose credential has this value; None when unknown or malformed."""
        ...

    async def list_operators(self) -> list[Operator]:
        """All operators, oldest first."""
        ...


class Tenancy(AccountDirectory, ApiTokenDirectory, OperatorDirectory, Protocol):
    """Everything at once, as the composition roots build it."""

    async def close(self) -> None:
        """Releases connections; nothing may follow."""
        ...
