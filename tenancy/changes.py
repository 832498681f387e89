"""Every change there is, by name, and what those of accounts and API tokens say.

Must not know who makes it. Read next: `tenancy.administration`.
"""

from dataclasses import dataclass
from enum import StrEnum

from msgspec import UNSET, UnsetType

from contracts.grant import RetentionClass
from contracts.ids import RegionId
from tenancy.interfaces import AccountStatus, ApiTokenStatus
from tenancy.policies import AddressCondition, AnyPolicies


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
    USAGE_DROP = "usage.drop"
    PLACEMENT_RULE_SET = "placement_rule.set"
    PLACEMENT_RULE_END = "placement_rule.end"
    NODE_DRAIN = "node.drain"
    NODE_UNDRAIN = "node.undrain"
    NODE_KEY_ROTATE = "node.rotate_key"
    NODE_ENROL = "node.enrol"
    NODE_REMOVE = "node.remove"
    PAYLOAD_LOG_SET = "payload_log.set"
    PAYLOAD_LOG_DELETE = "payload_log.delete"
    FINETUNE_CREATE = "finetune.create"
    FINETUNE_UPLOAD = "finetune.upload"
    FINETUNE_DELETE = "finetune.delete"


@dataclass(frozen=True, slots=True)
class AccountChange:
    """What to change in an account; a field that is not set stays as it is."""

    name: str | UnsetType = UNSET
    status: AccountStatus | UnsetType = UNSET
    allowed_regions: tuple[RegionId, ...] | UnsetType | None = UNSET
    allowed_jurisdictions: tuple[str, ...] | UnsetType | None = UNSET
    preferred_regions: tuple[RegionId, ...] | UnsetType = UNSET
    preferred_jurisdictions: tuple[str, ...] | UnsetType = UNSET
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
