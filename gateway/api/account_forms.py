"""Accounts and members as they are written and read, each role with fields of its own.

Owns the fields. What an operator writes is no field of any form that a tenant can send. Source:
Cloudflare's API reference (accounts). Read next: `gateway.api.account_pages`.
"""

from typing import Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from contracts.grant import RetentionClass
from contracts.ids import RegionId
from gateway.api.forms import Form, FormReader, format_unix_s
from tenancy.administration import AccountAdministration
from tenancy.changes import AccountChange
from tenancy.interfaces import Account, AccountStatus, Member


class AccountCreate(Form, frozen=True, kw_only=True):
    """What an operator may say of a new account; null means any region, any model."""

    name: str
    allowed_regions: tuple[RegionId, ...] | None = None
    allowed_jurisdictions: tuple[str, ...] | None = None
    """Regions have to be allowed by both lists."""
    preferred_regions: tuple[RegionId, ...] = ()
    """Of those that are allowed, the first with room, in this order."""
    preferred_jurisdictions: tuple[str, ...] = ()
    """The next after them."""
    allowed_models: tuple[str, ...] | None = None
    retention: RetentionClass = RetentionClass.STANDARD
    priority: int = 0


class AccountUpdate(Form, frozen=True, kw_only=True):
    """What an operator may say of an account that exists; what is left out stays."""

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
    """Null alone: it ends payload logs, which only the account itself can begin."""


class MemberCreate(Form, frozen=True, kw_only=True):
    """A person to be named as a member."""

    email: str


ACCOUNT_CREATE: Final = FormReader(AccountCreate)
ACCOUNT_UPDATE: Final = FormReader(AccountUpdate)
MEMBER_CREATE: Final = FormReader(MemberCreate)


class OperatorAccount(msgspec.Struct, frozen=True, kw_only=True):
    """An account in full."""

    id: str
    name: str
    status: str
    created_on: str | None
    cache_salt_generation: int
    retention: str
    priority: int
    is_metered: bool
    allowed_regions: tuple[str, ...] | None
    allowed_jurisdictions: tuple[str, ...] | None
    preferred_regions: tuple[str, ...]
    preferred_jurisdictions: tuple[str, ...]
    allowed_models: tuple[str, ...] | None
    payload_days: int | None


class TenantAccount(msgspec.Struct, frozen=True, kw_only=True):
    """An account as its own people see it, in the platform's form."""

    id: str
    name: str
    created_on: str | None
    type: Literal["standard"] = "standard"


class UserFields(msgspec.Struct, frozen=True):
    """The person behind a member."""

    email: str


class MemberFields(msgspec.Struct, frozen=True, kw_only=True):
    """A member as it is shown."""

    id: str
    email: str
    status: Literal["accepted"] = "accepted"
    user: UserFields
    roles: tuple[str, ...] = ()


async def create_account(administration: AccountAdministration, form: AccountCreate) -> Account:
    """The account that `form` asks for. Raises: what `administration` raises."""
    return await administration.create_account(**msgspec.structs.asdict(form))


def to_account_change(form: AccountUpdate) -> AccountChange:
    """What `form` asks for."""
    return AccountChange(**msgspec.structs.asdict(form))


def to_operator_account(account: Account) -> OperatorAccount:
    """The account as operators see it."""
    return OperatorAccount(
        id=account.account_id,
        name=account.name,
        status=account.status,
        created_on=format_unix_s(account.created_unix_s),
        cache_salt_generation=account.cache_salt_generation,
        retention=account.retention,
        priority=account.priority,
        is_metered=account.is_metered,
        allowed_regions=account.allowed_regions,
        allowed_jurisdictions=account.allowed_jurisdictions,
        preferred_regions=account.preferred_regions,
        preferred_jurisdictions=account.preferred_jurisdictions,
        allowed_models=account.allowed_models,
        payload_days=account.payload_days,
    )


def to_tenant_account(account: Account) -> TenantAccount:
    """The account as its own people see it."""
    return TenantAccount(
        id=account.account_id,
        name=account.name,
        created_on=format_unix_s(account.created_unix_s),
    )


def to_member_fields(member: Member) -> MemberFields:
    """The member as it is shown."""
    return MemberFields(id=member.member_id, email=member.email, user=UserFields(member.email))
