"""Who is asking, and the values of tenancy: what the gateway reads on its hot path.

Implemented in `tenancy.directory`, on SQLite and PostgreSQL under the same tests. Must not know
HTTP nor how anything is changed (`tenancy.administration`). Times are seconds since 1970, UTC.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from contracts.budgets import BudgetKey
from contracts.fleet_view import NodeDrain
from contracts.grant import RetentionClass
from contracts.ids import AccountId, ApiTokenId, OperatorId, RegionId, RequestId
from contracts.pricing import Price
from contracts.quotas import Quota
from contracts.region_rules import RegionRules
from contracts.settings import Secret
from contracts.usage import ExportForm, Step, UsageCursor, UsageRecord, UsageSummary, UsageTotal
from tenancy.keeping import Keeping
from tenancy.permissions import Permission
from tenancy.policies import AddressCondition, ModelAccess, Policies, evaluate_permissions


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
    is_metered: bool = True
    """False: its use is recorded and costs nothing, whatever the price list says."""
    allowed_jurisdictions: tuple[str, ...] | None = None
    """Those that its regions have to lie in, too: None means any, an empty tuple none at all."""
    preferred_regions: tuple[RegionId, ...] = ()
    """Of the regions that may compute for it, those that do so first, in this order."""
    preferred_jurisdictions: tuple[str, ...] = ()
    """The next after them: regions that lie in these."""
    allowed_models: tuple[str, ...] | None = None
    """Models it may use, as patterns (`tenancy.policies`); None means every one."""
    priority: int = 0
    """Which requests go first in a node's queue; higher is sooner."""
    payload_days: int | None = None
    """For so long is kept what it asks and is answered; None means not at all."""


@dataclass(frozen=True, slots=True)
class ApiToken:
    """A tenant's credential without its value."""

    api_token_id: ApiTokenId
    account_id: AccountId
    name: str
    hint: str
    """The first characters of the value, enough to recognise it in a list."""
    status: ApiTokenStatus
    policies: Policies
    condition: AddressCondition | None
    issued_unix_s: int
    modified_unix_s: int
    not_before_unix_s: int | None
    expires_unix_s: int | None
    last_used_unix_s: int | None = None
    """Written down within the minute that followed; None: never, as far as is known."""

    @property
    def permissions(self) -> frozenset[Permission]:
        """What the policies come to."""
        return evaluate_permissions(self.policies)


@dataclass(frozen=True, slots=True)
class IssuedApiToken:
    """A credential at the only moment when its value is known."""

    api_token: ApiToken
    value: Secret


@dataclass(frozen=True, slots=True)
class Principal:
    """Who is asking: an API token and what the gateway needs to know of its account.

    A snapshot that may be cached as long as `PrincipalDirectory.read_epoch` stays the same; the
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
    region_rules: RegionRules
    priority: int
    cache_salt: bytes = field(repr=False)
    """HKDF(master key, account's secret, account id, salt generation); 32 bytes."""
    quotas: tuple[Quota, ...] = ()
    """The limits of the account and of this token, for every model and for single ones."""
    is_metered: bool = True
    """False: its use is recorded and costs nothing."""
    models: ModelAccess | None = None
    """Models that inference may use; None means every one."""
    writable_models: ModelAccess | None = None
    """Models whose finetunes may be made and deleted; None means every one."""
    condition: AddressCondition | None = None
    """Where the token may be used from; None means anywhere."""
    payload_days: int | None = None
    """For so long is kept what is asked and answered; None means not at all."""

    @property
    def may_be_kept(self) -> bool:
        """True when something of a request may outlive its answer."""
        return self.retention is not RetentionClass.NONE

    @property
    def wants_payloads_kept(self) -> bool:
        """True when the account has asked for it and its retention allows it."""
        return self.payload_days is not None and self.may_be_kept


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


@dataclass(frozen=True, slots=True)
class Member:
    """A person of an account; for reading, since people hold no credential of their own."""

    member_id: str
    account_id: AccountId
    email: str
    created_unix_s: int


class PrincipalDirectory(Protocol):
    """Who is behind a credential: all that the hot path asks of tenancy."""

    def digest_api_token(self, value: str) -> bytes | None:
        """Digest under the current pepper, or None when shape or checksum is wrong: no I/O."""
        ...

    async def find_principal(self, value: str) -> Principal | None:
        """The principal whose token has this value, whatever its status; None when unknown."""
        ...

    async def find_principal_by_id(
        self, account_id: AccountId, api_token_id: ApiTokenId
    ) -> Principal | None:
        """The principal of an API token of the account, whatever its status; None when deleted."""
        ...

    async def read_epoch(self) -> int:
        """Grows with every change that could make a cached principal wrong."""
        ...


class TokenUseLog(Protocol):
    """When API tokens were last used."""

    async def note_api_token_uses(self, uses: Mapping[ApiTokenId, int]) -> None:
        """Moves the tokens' last uses forward to these seconds since 1970, never back.

        Raises: `StoreUnavailable`; some may have been noted then, and can be noted again.
        """
        ...


class OperatorDirectory(Protocol):
    """Who is behind an operator's credential."""

    async def find_operator(self, value: str) -> Operator | None:
        """The operator whose credential has this value; None when unknown or malformed."""
        ...


class PriceDirectory(Protocol):
    """The price list, for reading."""

    async def list_prices(self) -> list[Price]:
        """The prices that hold now, in order of model."""
        ...


class DrainDirectory(Protocol):
    """Which nodes are to get nothing new, for reading."""

    async def list_node_drains(self) -> list[NodeDrain]:
        """Every drain, in order of node."""
        ...


class UsageLedger(Protocol):
    """The ledger, and its sums by hour and day."""

    async def append_usage(self, records: Sequence[UsageRecord], owner: str) -> int:
        """How many of `records` the ledger did not have; `owner` names whose slices they spend.

        Raises: `StoreUnavailable`, and nothing was added.
        """
        ...

    async def list_usage_records(
        self, account_id: AccountId, day: int, *, limit: int = 100, after: RequestId | None = None
    ) -> list[UsageRecord]:
        """At most `limit` records of requests begun on `day`, in order of id, those after `after`.

        Raises: `InvalidRequest` (limit).
        """
        ...

    def export_usage(
        self, account_id: AccountId, days: range, form: ExportForm
    ) -> AsyncIterator[bytes]:
        """An export of requests that began on `days`, piece by piece, in order of their ids.

        Raises: `StoreUnavailable`, then it ends without its last line.
        """
        ...

    async def roll_up_usage(self) -> int:
        """How many sums were added to the totals; 0 too while another worker is at it."""
        ...

    async def list_usage(
        self,
        account_id: AccountId,
        step: Step,
        since: int,
        until: int,
        *,
        limit: int = 100,
        after: UsageCursor | None = None,
    ) -> list[UsageTotal]:
        """At most `limit` totals of the hours or days from `since` to before `until`, in order of
        period, model and token, those behind `after`. Raises: `InvalidRequest` (limit).
        """
        ...


class UsageSummaries(Protocol):
    """The sums of whole accounts, for those who run the platform."""

    async def sum_usage(
        self, step: Step, since: int, until: int, account_id: AccountId | None = None
    ) -> dict[int, UsageSummary]:
        """What each hour or day from `since` to before `until` comes to; those with nothing are
        left out. None for `account_id` means every account.
        """
        ...

    async def rank_accounts(
        self, step: Step, since: int, until: int, *, limit: int = 10
    ) -> list[tuple[AccountId, UsageSummary]]:
        """At most `limit` accounts with what they used in these periods, the dearest first.

        Raises: `InvalidRequest` (limit).
        """
        ...


class BudgetStore(Protocol):
    """Budgets of days and months, leased to gateways in slices."""

    async def read_budget(self, key: BudgetKey) -> int:
        """What the ledger has charged to the budget."""
        ...

    async def lease_budget(
        self, key: BudgetKey, owner: str, limit: int, wanted: int, lease_ms: int
    ) -> int:
        """How much `owner` may spend more: `wanted`, or what the limit leaves of it.

        The lease of all that it holds of this budget ends `lease_ms` from now.
        """
        ...

    async def renew_budgets(self, owner: str, lease_ms: int) -> None:
        """What `owner` holds stays its own for `lease_ms` from now, but not what it has lost."""
        ...

    async def release_budget(self, key: BudgetKey, owner: str) -> None:
        """Gives back all that `owner` holds of one budget; its records must be in the ledger."""
        ...

    async def drop_budgets(self, owner: str) -> None:
        """Gives back all that `owner` holds; its records must be in the ledger."""
        ...


class ProcessClaim(Protocol):
    """The right to be the only gateway process on a database."""

    @property
    def is_lost(self) -> bool:
        """True once another process has taken it."""
        ...

    async def acquire(self) -> None:
        """Raises: `Conflict` when another process has it, `StoreUnavailable`."""
        ...

    async def watch(self) -> None:
        """Keeps it for ever; takes it again when the database has let go, or notes the loss."""
        ...

    async def release(self) -> None:
        """Gives it to whoever comes next."""
        ...


class UsageBooks(UsageLedger, UsageSummaries, BudgetStore, Protocol):
    """All that is known of what was used, and of what may be."""


class TenancyDirectory(
    PrincipalDirectory,
    TokenUseLog,
    OperatorDirectory,
    PriceDirectory,
    DrainDirectory,
    UsageBooks,
    Keeping,
    Protocol,
):
    """Everything that gateways look up and write down, as the composition roots build it."""

    async def close(self) -> None:
        """Releases connections; nothing may follow."""
        ...
