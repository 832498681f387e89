"""API tokens as rows of `api_tokens`, and back.

Owns what a change means in columns and what a row means now; must not know statements.
Read next: `tenancy.tokens.rights_columns`, `tenancy.tokens.store`.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET
from sqlalchemy import Row, RowMapping

from contracts.ids import AccountId, ApiTokenId
from tenancy.changes import ApiTokenChange
from tenancy.interfaces import ApiToken, ApiTokenStatus
from tenancy.policies import allow
from tenancy.tokens.lifetime import check_settable, compute_status
from tenancy.tokens.rights_columns import to_condition, to_policies, to_policy_columns
from tenancy.validation import check_condition, check_lifetime, check_name, check_policies


def to_columns(change: ApiTokenChange, stored: RowMapping | None) -> dict[str, Any]:
    """The columns that `change` sets on a token as `stored`. Raises: `InvalidRequest`."""
    columns: dict[str, Any] = {}
    if change.name is not UNSET:
        columns["name"] = check_name(change.name)
    if change.policies is not UNSET or change.condition is not UNSET:
        policies, condition = change.policies, change.condition
        if policies is UNSET:
            assert stored is not None
            policies = to_policies(stored["policies"], stored["permissions"])
        if condition is UNSET:
            condition = None if stored is None else to_condition(stored["condition"])
        columns |= to_policy_columns(
            check_policies(allow(policies) if isinstance(policies, frozenset) else policies),
            check_condition(condition),
        )
    if change.status is not UNSET:
        columns["status"] = check_settable(change.status)
    if change.not_before_unix_s is not UNSET:
        columns["not_before_unix_s"] = change.not_before_unix_s
    if change.expires_unix_s is not UNSET:
        columns["expires_unix_s"] = change.expires_unix_s
    times = ("not_before_unix_s", "expires_unix_s")
    kept = {} if stored is None else {name: stored[name] for name in times}
    check_lifetime(*({**kept, **columns}[name] for name in times))
    return columns


def is_harmless(columns: Mapping[str, Any]) -> bool:
    """True for what gives nobody a right: a new name, and disabling."""
    is_disabling = columns.get("status", ApiTokenStatus.DISABLED) is ApiTokenStatus.DISABLED
    return is_disabling and columns.keys() <= {"name", "status"}


def to_api_token(row: Row[Any], now_unix_us: int) -> ApiToken:
    """The API token a row describes, its status as of now."""
    stored = ApiTokenStatus(row.status)
    modified_unix_us = row.modified_unix_us or row.issued_unix_us
    return ApiToken(
        api_token_id=ApiTokenId(row.api_token_id),
        account_id=AccountId(row.account_id),
        name=row.name,
        hint=row.hint,
        status=compute_status(stored, row.expires_unix_s, now_unix_us),
        policies=to_policies(row.policies, row.permissions),
        condition=to_condition(row.condition),
        issued_unix_s=row.issued_unix_us // 1_000_000,
        modified_unix_s=modified_unix_us // 1_000_000,
        not_before_unix_s=row.not_before_unix_s,
        expires_unix_s=row.expires_unix_s,
        last_used_unix_s=row.last_used_unix_s,
    )
