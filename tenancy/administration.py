"""What can be changed in tenancy, by whom, and what is written down about it.

An `Administration` belongs to one actor: every change is recorded under that actor's name in the
same transaction. Must not know HTTP. Implemented in `tenancy.directory`; times are seconds since
1970, UTC. Read next: `tenancy.actors`, `tenancy.changes`, `tenancy.audit.entries` (the values),
`tenancy.platform_administration`.
"""

from typing import Protocol

from contracts.grant import RetentionClass
from contracts.ids import AccountId, ApiTokenId, RegionId
from contracts.quotas import Quota, QuotaLimits, QuotaScope
from tenancy.actors import Actor
from tenancy.audit.entries import AuditEntry, AuditFilter
from tenancy.audit.verdict import Verdict
from tenancy.changes import AccountChange, ApiTokenChange
from tenancy.finetunes.interface import FinetuneAdministration
from tenancy.interfaces import (
    Account,
    AccountStatus,
    ApiToken,
    ApiTokenStatus,
    IssuedApiToken,
    Member,
)
from tenancy.payloads.interface import PayloadAdministration
from tenancy.platform_administration import (
    NodeAdministration,
    OperatorAdministration,
    PlacementAdministration,
    PriceAdministration,
    UsageAdministration,
)
from tenancy.policies import AddressCondition, AnyPolicies


class AccountAdministration(Protocol):
    """Accounts; their changes are the platform's, an API token's actor is refused."""

    async def create_account(
        self,
        name: str,
        *,
        allowed_regions: tuple[RegionId, ...] | None = None,
        allowed_jurisdictions: tuple[str, ...] | None = None,
        preferred_regions: tuple[RegionId, ...] = (),
        preferred_jurisdictions: tuple[str, ...] = (),
        allowed_models: tuple[str, ...] | None = None,
        retention: RetentionClass = RetentionClass.STANDARD,
        priority: int = 0,
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

    async def change_account(self, account_id: AccountId, change: AccountChange) -> Account:
        """Takes effect with the next epoch. Raises: `NotFound`, `InvalidRequest`."""
        ...

    async def set_account_status(self, account_id: AccountId, status: AccountStatus) -> Account:
        """Suspends or resumes; takes effect with the next epoch. Raises: `NotFound`."""
        ...

    async def set_account_metered(self, account_id: AccountId, is_metered: bool) -> Account:
        """Whether the account pays; takes effect with the next epoch. Raises: `NotFound`."""
        ...

    async def rotate_cache_salt(self, account_id: AccountId) -> Account:
        """Makes every cached prefix of the account unreachable. Raises: `NotFound`."""
        ...

    async def purge_account(self, account_id: AccountId) -> None:
        """Removes a suspended account with all it owns and shreds its data key.

        The id stays taken, so that books and audit log never point at somebody else.
        Raises: `NotFound`, `Conflict` unless it is suspended.
        """
        ...


class ApiTokenAdministration(Protocol):
    """API tokens. An API token's actor can grant nothing beyond what it holds itself."""

    async def create_api_token(
        self,
        account_id: AccountId,
        name: str,
        policies: AnyPolicies,
        *,
        condition: AddressCondition | None = None,
        not_before_unix_s: int | None = None,
        expires_unix_s: int | None = None,
    ) -> IssuedApiToken:
        """Raises: `NotFound` (account), `InvalidRequest`, `Forbidden`, `Conflict` (too many)."""
        ...

    async def get_api_token(self, account_id: AccountId, api_token_id: ApiTokenId) -> ApiToken:
        """Raises: `NotFound`, also when the token belongs to another account."""
        ...

    async def list_api_tokens(self, account_id: AccountId) -> list[ApiToken]:
        """All tokens of the account, oldest first. Raises: `NotFound` (account)."""
        ...

    async def change_api_token(
        self, account_id: AccountId, api_token_id: ApiTokenId, change: ApiTokenChange
    ) -> ApiToken:
        """Raises: `NotFound`, `InvalidRequest`, `Forbidden`."""
        ...

    async def set_api_token_status(
        self, account_id: AccountId, api_token_id: ApiTokenId, status: ApiTokenStatus
    ) -> ApiToken:
        """Enables or disables; `expired` cannot be set. Raises: `NotFound`, `InvalidRequest`."""
        ...

    async def roll_api_token(
        self, account_id: AccountId, api_token_id: ApiTokenId
    ) -> IssuedApiToken:
        """The token with a new value; the old one is void. Raises: `NotFound`, `Forbidden`."""
        ...

    async def delete_api_token(self, account_id: AccountId, api_token_id: ApiTokenId) -> None:
        """Raises: `NotFound`."""
        ...


class MemberAdministration(Protocol):
    """The people of an account, kept encrypted under its data key."""

    async def add_member(self, account_id: AccountId, email: str) -> Member:
        """Raises: `NotFound` (account), `InvalidRequest`, `Conflict` (too many)."""
        ...

    async def get_member(self, account_id: AccountId, member_id: str) -> Member:
        """Raises: `NotFound`, also when the member belongs to another account."""
        ...

    async def list_members(self, account_id: AccountId) -> list[Member]:
        """All members of the account, oldest first. Raises: `NotFound` (account)."""
        ...

    async def remove_member(self, account_id: AccountId, member_id: str) -> None:
        """Raises: `NotFound`."""
        ...


class QuotaAdministration(Protocol):
    """Limits; an API token's actor may read those of its own account."""

    async def set_quota(self, scope: QuotaScope, limits: QuotaLimits) -> Quota:
        """The scope's limits from now on. Raises: `NotFound` (account, token), `InvalidRequest`."""
        ...

    async def delete_quota(self, scope: QuotaScope) -> None:
        """Raises: `NotFound`."""
        ...

    async def list_quotas(self, account_id: AccountId) -> list[Quota]:
        """All quotas of the account, its tokens and models. Raises: `NotFound` (account)."""
        ...


class Administration(
    AccountAdministration,
    ApiTokenAdministration,
    MemberAdministration,
    OperatorAdministration,
    QuotaAdministration,
    PriceAdministration,
    UsageAdministration,
    PlacementAdministration,
    NodeAdministration,
    PayloadAdministration,
    FinetuneAdministration,
    Protocol,
):
    """All that one actor may read and change."""

    async def list_audit_entries(
        self,
        wanted: AuditFilter,
        *,
        limit: int = 100,
        after: int | None = None,
        skip: int = 0,
        oldest_first: bool = False,
    ) -> list[AuditEntry]:
        """At most `limit` entries, those beyond sequence `after` in the direction asked for.

        `skip` entries are passed over first, which costs as much as reading them.

        Raises: `Forbidden` when an API token's actor asks for more than its own account.
        """
        ...

    async def verify_audit_log(self) -> Verdict:
        """What a check of the whole log against its hashes and signed heads finds.

        Raises: `Forbidden` for an API token's actor, `Conflict` while another check runs.
        """
        ...

    async def rewrap_data_keys(self) -> int:
        """How many data keys were brought under the key ring's current version; 0: none is left."""
        ...


class Administrations(Protocol):
    """Gives every actor its own administration."""

    def act_as(self, actor: Actor) -> Administration:
        """What `actor` may do; costs nothing and holds nothing open."""
        ...
