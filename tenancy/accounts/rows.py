"""Accounts as their rows have them, both ways, and the pages in which they are listed.

Owns what each column means, and its checks. Read next: `tenancy.accounts.store`.
"""

from collections.abc import Collection
from typing import Any

import msgspec
from msgspec import UNSET
from sqlalchemy import Row, Select, select

from contracts.errors import InvalidRequest
from contracts.grant import RetentionClass
from contracts.ids import AccountId, RegionId, is_account_id
from contracts.region_rules import RegionRules
from tenancy.changes import AccountChange
from tenancy.interfaces import Account, AccountStatus
from tenancy.tables import accounts
from tenancy.validation import (
    check_jurisdictions,
    check_models,
    check_name,
    check_page_size,
    check_priority,
    check_regions,
)


def select_page(limit: int, after: AccountId | None) -> Select[Any]:
    """At most `limit` accounts in order of id, those after `after`. Raises: `InvalidRequest`."""
    query = (
        select(accounts)
        .where(accounts.c.purged_unix_us.is_(None))
        .order_by(accounts.c.account_id)
        .limit(check_page_size(limit))
    )
    if after is None:
        return query
    if not is_account_id(after):
        raise InvalidRequest("`after` is not an account id.", param="after")
    return query.where(accounts.c.account_id > after)


def to_region_rules(row: Row[Any]) -> RegionRules:
    """What the columns of an account say of regions: no list of what is allowed allows any."""
    regions, laws = row.allowed_regions, row.allowed_jurisdictions
    return RegionRules(
        allowed_regions=None if regions is None else tuple(map(RegionId, regions)),
        allowed_jurisdictions=None if laws is None else tuple(laws),
        preferred_regions=tuple(map(RegionId, row.preferred_regions or ())),
        preferred_jurisdictions=tuple(row.preferred_jurisdictions or ()),
    )


def to_models(patterns: Collection[str] | None) -> tuple[str, ...] | None:
    """The patterns of a stored list; without a list, None, which is any model."""
    return None if patterns is None else tuple(patterns)


def to_columns(change: AccountChange) -> dict[str, Any]:
    """The columns that `change` sets, checked; some. Raises: `InvalidRequest`."""
    columns: dict[str, Any] = {}
    if change.name is not UNSET:
        columns["name"] = check_name(change.name)
    if change.status is not UNSET:
        columns["status"] = change.status
    if change.allowed_regions is not UNSET:
        columns["allowed_regions"] = check_regions(change.allowed_regions, "allowed_regions")
    if change.allowed_jurisdictions is not UNSET:
        laws = check_jurisdictions(change.allowed_jurisdictions, "allowed_jurisdictions")
        columns["allowed_jurisdictions"] = laws
    if change.preferred_regions is not UNSET:
        regions = check_regions(change.preferred_regions, "preferred_regions")
        columns["preferred_regions"] = regions or None
    if change.preferred_jurisdictions is not UNSET:
        laws = check_jurisdictions(change.preferred_jurisdictions, "preferred_jurisdictions")
        columns["preferred_jurisdictions"] = laws or None
    if change.allowed_models is not UNSET:
        models = check_models(change.allowed_models, "allowed_models")
        columns["allowed_models"] = None if models is None else list(models)
    if change.retention is not UNSET:
        columns["retention"] = change.retention
        if change.retention is RetentionClass.NONE:
            columns["payload_days"] = None
    if change.payload_days is not UNSET:
        columns["payload_days"] = None
    if change.priority is not UNSET:
        columns["priority"] = check_priority(change.priority)
    if change.is_metered is not UNSET:
        columns["is_metered"] = change.is_metered
    if not columns:
        raise InvalidRequest("There is nothing to change.")
    return columns


def to_account(row: Row[Any]) -> Account:
    """The account a row describes."""
    return Account(
        account_id=AccountId(row.account_id),
        name=row.name,
        status=AccountStatus(row.status),
        created_unix_s=row.created_unix_us // 1_000_000,
        cache_salt_generation=row.cache_salt_generation,
        retention=RetentionClass(row.retention),
        **msgspec.structs.asdict(to_region_rules(row)),
        allowed_models=to_models(row.allowed_models),
        priority=row.priority,
        is_metered=row.is_metered,
        payload_days=row.payload_days,
    )
