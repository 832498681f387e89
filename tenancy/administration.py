"""What can be changed in tenancy, by whom, and what is written down about it.

An `Administration` belongs to one actor: every change is recorded under that actor's name in the
same transaction. Must not know HTTP. Implemented in `tenancy.directory`; times are seconds since
1970, UTC. Read next: `tenancy.interfaces` (the values), `tenancy.audit.chain`.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from msgspec import UNSET, UnsetType

from contracts.fleet_view import NodeDrain, PlacementRule
from contracts.grant import RetentionClass
from contracts.ids import AccountId, ApiTokenId, ModelName, NodeId, OperatorId, RegionId
from contracts.pricing import Price, TokenRates
from contracts.quotas import Quota, QuotaLimits, QuotaScope
from tenancy.audit.verdict import Verdict
from tenancy.interfaces import (
    Account,
    AccountStatus,
    ApiToken,
    ApiTokenStatus,
    IssuedApiToken,
    IssuedOperator,
    Member,
    Operator,
)
from tenancy.payloads.interface import PayloadAdministration
from tenancy.policies import AddressCondition, AnyPolicies


class ActorKind(StrEnum):
    """How somebody reached tenancy."""

    API_TOKEN = "api_token"
    OPERATOR = "operator"
    COMMAND_LINE = "command_line"
    """A command on a machine that holds database and key ring; the id is the system's user."""
    SYSTEM = "system"
    """Hearth itself, such as at the first start."""


@dataclass(frozen=True, slots=True)
class Actor:
    """Who makes a change, as the audit log names them."""

    kind: ActorKind
    actor_id: str
    account_id: AccountId | None = None
    """Set for API tokens, which reach nothing outside it."""
    address: str | None = None
    """The client's, as far as it is known."""
    request_id: str | None = None


class Action(StrEnum):
    """Every change there is, as `resource.verb`."""

    ACCOUNT_CREATE = "account.create"
    ACCOUNT_UPDATE = "account.update"
    ACCOUNT_PURGE = "account.purge"
    CACHE_SALT_ROTATE = "account.rotate_cache_salt"
    DATA_KEY_REWRAP = "data_key.rewrap"
    API_TOKEN_CREATE = "api_token.create"
    API_TOKEN_UPDATE = "api_token.update"
    API_TOKEN_ROLL = "api_token.roll"
    API_TOKEN_DELETE = "api_token.delete"
    MEMBER_ADD = "member.add"
    MEMBER_REMOVE = "member.remove"
    OPERATOR_CREATE = "operator.create"
    OPERATOR_DELETE = "operator.delete"
    QUOTA_SET = "quota.set"
    QUOTA_DELETE = "quota.delete"
    PRICE_SET = "price.set"
    PRICE_END = "price.end"
    PLACEMENT_RULE_SET = "placement_rule.set"
    PLACEMENT_RULE_END = "placement_rule.end"
    NODE_DRAIN = "node.drain"
    NODE_UNDRAIN = "node.undrain"
    NODE_KEY_ROTATE = "node.rotate_key"
    PAYLOAD_LOG_SET = "payload_log.set"
    PAYLOAD_LOG_DELETE = "payload_log.delete"


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One change, as it was recorded."""

    sequence: int
    """Counts from 1 without a gap."""
    occurred_unix_us: int
    account_id: AccountId | None
    """The account that was changed; None for what belongs to the platform."""
    actor: Actor
    action: str
    resource_id: str
    details: str
    """A JSON object of what changed; never a secret."""


class AuditPart(StrEnum):
    """A part of an entry. Those of tokens are as if absent where somebody else has acted, whom the
    account is not told: no condition can find out what no answer says.
    """

    SEQUENCE = "sequence"
    ACTION = "action"
    ACTOR_KIND = "actor_kind"
    RESOURCE_ID = "resource_id"
    TOKEN_ID = "token_id"
    TOKEN_ADDRESS = "token_address"
    TOKEN_REQUEST_ID = "token_request_id"


@dataclass(frozen=True, slots=True)
class AuditTerm:
    """Entries whose part is one of `values`, or is none of them; no entry's part is one of none."""

    part: AuditPart
    values: tuple[str | int, ...]
    is_excluded: bool = False


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which entries to list. Times in microseconds since 1970, `before` exclusive."""

    account_id: AccountId | None = None
    since_unix_us: int | None = None
    before_unix_us: int | None = None
    action: str | None = None
    actor_id: str | None = None
    resource_id: str | None = None
    terms: tuple[AuditTerm, ...] = ()
    """Further conditions, all of which must hold."""


@dataclass(frozen=True, slots=True)
class AccountChange:
    """What to change in an account; a field that is not set stays as it is."""

    name: str | UnsetType = UNSET
    status: AccountStatus | UnsetType = UNSET
    allowed_regions: tuple[RegionId, ...] | UnsetType | None = UNSET
    allowed_models: tuple[str, ...] | UnsetType | None = UNSET
    retention: RetentionClass | UnsetType = UNSET
    priority: int | UnsetType = UNSET
    is_metered: bool | UnsetType = UNSET
    payload_days: UnsetType | None = UNSET
    """None deletes the payload logs and ends them; only the account itself can begin them."""


@dataclass(frozen=True, slots=True)
class ApiTokenChange:
    """What to change in an API token; a field that is not set stays as it is."""

    name: str | UnsetType = UNSET
    policies: AnyPolicies | UnsetType = UNSET
    condition: AddressCondition | UnsetType | None = UNSET
    status: ApiTokenStatus | UnsetType = UNSET
    not_before_unix_s: int | UnsetType | None = UNSET
    expires_unix_s: int | UnsetType | None = UNSET


class AccountAdministration(Protocol):
    """Accounts; their changes are the platform's, an API token's actor is refused."""

    async def create_account(
        self,
        name: str,
        *,
        allowed_regions: tuple[RegionId, ...] | None = None,
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


class OperatorAdministration(Protocol):
    """Operators; an API token's actor is refused."""

    async def create_operator(self, name: str) -> IssuedOperator:
        """Raises: `InvalidRequest`."""
        ...

    async def list_operators(self) -> list[Operator]:
        """All operators, oldest first."""
        ...

    async def delete_operator(self, operator_id: OperatorId) -> None:
        """Its credential is void at once. Raises: `NotFound`, `Conflict` for the last one."""
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


class PriceAdministration(Protocol):
    """The price list; an API token's actor may read it."""

    async def set_price(
        self, model: str, money: TokenRates, neurons: TokenRates | None = None
    ) -> Price:
        """The price of a model or pattern from now on; neurons follow from money if left out.

        Raises: `InvalidRequest`.
        """
        ...

    async def end_price(self, model: str) -> None:
        """The model or pattern has no price of its own any more. Raises: `NotFound`."""
        ...

    async def list_prices(self) -> list[Price]:
        """The prices that hold now, in order of model."""
        ...


class PlacementAdministration(Protocol):
    """What operators want of where weights are; an API token's actor is refused."""

    async def set_placement_rule(self, rule: PlacementRule) -> PlacementRule:
        """What holds for the model from now on. Raises: `InvalidRequest`."""
        ...

    async def end_placement_rule(self, model: ModelName) -> None:
        """Demand alone decides about the model from now on. Raises: `NotFound`."""
        ...

    async def list_placement_rules(self) -> list[PlacementRule]:
        """Every rule, in order of model, those that are over included."""
        ...


class NodeAdministration(Protocol):
    """Which nodes are to get nothing new; an API token's actor is refused."""

    async def drain_node(self, node_id: NodeId, move_after_s: int | None = None) -> NodeDrain:
        """The drain that begins now, instead of one before. Raises: `InvalidRequest`."""
        ...

    async def undrain_node(self, node_id: NodeId) -> None:
        """The node gets requests again. Raises: `NotFound`."""
        ...

    async def list_node_drains(self) -> list[NodeDrain]:
        """Every drain, in order of node."""
        ...

    async def note_node_key(self, node_id: NodeId, key_name: str) -> None:
        """A gateway and the node share another key: the log has its name, the store has no key."""
        ...


class Administration(
    AccountAdministration,
    ApiTokenAdministration,
    MemberAdministration,
    OperatorAdministration,
    QuotaAdministration,
    PriceAdministration,
    PlacementAdministration,
    NodeAdministration,
    PayloadAdministration,
    Protocol,
):
    """All that one actor may read and change."""

    async def list_audit_entries(
        self,
        wanted: AuditFilter,
        *,
        limit: int = 100,
        after: int | None = None,
        oldest_first: bool = False,
    ) -> list[AuditEntry]:
        """At most `limit` entries, those beyond sequence `after` in the direction asked for.

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
