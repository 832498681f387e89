"""API tokens as clients write and read them.

Owns the fields; must not know routes. Source: Cloudflare's API reference (API tokens).
Read next: `gateway.api.policy_forms`, `gateway.api.token_pages`.
"""

from datetime import datetime
from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from contracts.ids import AccountId
from gateway.api.forms import Form, FormReader, format_unix_s
from gateway.api.policy_forms import (
    ConditionFields,
    ConditionForm,
    PolicyFields,
    PolicyForm,
    parse_condition,
    parse_policies,
    to_condition_fields,
    to_policy_fields,
)
from tenancy.changes import ApiTokenChange
from tenancy.interfaces import ApiToken, ApiTokenStatus
from tenancy.permissions import PermissionGroup

Moment = Annotated[datetime, msgspec.Meta(tz=True)]


TokenName = Annotated[str, msgspec.Meta(extra_json_schema={"minLength": 1, "maxLength": 100})]
"""Tenancy checks it, and what else a name must be."""
PolicyForms = Annotated[tuple[PolicyForm, ...], msgspec.Meta(extra_json_schema={"minItems": 1})]


class TokenCreate(Form, frozen=True, kw_only=True):
    """What may be said of a new token."""

    name: TokenName
    policies: PolicyForms
    condition: ConditionForm | None = None
    not_before: Moment | None = None
    expires_on: Moment | None = None


class TokenUpdate(Form, frozen=True, kw_only=True):
    """What may be said of a token that exists; what is left out stays, null takes it away."""

    name: TokenName
    policies: PolicyForms
    status: Literal["active", "disabled", "expired"] | UnsetType = UNSET
    condition: ConditionForm | UnsetType | None = UNSET
    not_before: Moment | UnsetType | None = UNSET
    expires_on: Moment | UnsetType | None = UNSET


TOKEN_CREATE: Final = FormReader(TokenCreate)
TOKEN_UPDATE: Final = FormReader(TokenUpdate)


class TokenFields(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A token as it is shown; `value` only when it is new."""

    id: str
    name: str
    status: str
    issued_on: str | None
    modified_on: str | None
    last_used_on: str | None = None
    """To the minute; never used if it is missing."""
    policies: tuple[PolicyFields, ...]
    not_before: str | None = None
    expires_on: str | None = None
    condition: ConditionFields | None = None
    value: str | None = None


class VerifiedToken(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of `tokens/verify`."""

    id: str
    status: str
    not_before: str | None = None
    expires_on: str | None = None


class DeletedObject(msgspec.Struct, frozen=True):
    """What is said of an object that is gone."""

    id: str


class PermissionGroupFields(msgspec.Struct, frozen=True):
    """A permission group of the list."""

    id: str
    name: str
    scopes: tuple[str, ...]
    category: str
    is_selectable: bool
    """True when the caller holds it, and so can grant it."""


def to_change(form: TokenCreate | TokenUpdate, account_id: AccountId) -> ApiTokenChange:
    """What `form` asks for. Raises: `InvalidRequest`."""
    status, condition = UNSET, form.condition
    if isinstance(form, TokenUpdate) and form.status is not UNSET:
        status = ApiTokenStatus(form.status)
    return ApiTokenChange(
        name=form.name,
        policies=parse_policies(form.policies, account_id),
        condition=UNSET if condition is UNSET else parse_condition(condition),
        status=status,
        not_before_unix_s=_to_unix_s(form.not_before),
        expires_unix_s=_to_unix_s(form.expires_on),
    )


def to_token_fields(api_token: ApiToken, value: str | None = None) -> TokenFields:
    """The token as it is shown."""
    return TokenFields(
        id=api_token.api_token_id,
        name=api_token.name,
        status=api_token.status,
        issued_on=format_unix_s(api_token.issued_unix_s),
        modified_on=format_unix_s(api_token.modified_unix_s),
        last_used_on=format_unix_s(api_token.last_used_unix_s),
        policies=to_policy_fields(api_token.policies, api_token.api_token_id, api_token.account_id),
        not_before=format_unix_s(api_token.not_before_unix_s),
        expires_on=format_unix_s(api_token.expires_unix_s),
        condition=to_condition_fields(api_token.condition),
        value=value,
    )


def to_group_fields(group: PermissionGroup, *, is_selectable: bool) -> PermissionGroupFields:
    """The group as it is listed."""
    return PermissionGroupFields(
        group.group_id, group.permission, group.scopes, group.category, is_selectable
    )


def _to_unix_s(moment: datetime | UnsetType | None) -> int | UnsetType | None:
    """The second that `moment` lies in."""
    return int(moment.timestamp()) if isinstance(moment, datetime) else moment
