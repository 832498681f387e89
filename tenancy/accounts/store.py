"""Accounts in the database: `AccountAdministration` on SQLAlchemy.

Owns the statements on `accounts`; must not know credentials. Every change that a cached principal
depends on bumps the epoch. Read next: `tenancy.accounts.purge`, `tenancy.tokens.store`.
"""

from collections.abc import Collection
from typing import Any

from msgspec import UNSET
from sqlalchemy import Row, delete, insert, select, update

from contracts.errors import InvalidRequest
from contracts.grant import RetentionClass
from contracts.ids import AccountId, RegionId, is_account_id
from tenancy.accounts.purge import purge_account
from tenancy.changes import AccountChange, Action
from tenancy.encryption.data_keys import create_data_key
from tenancy.interfaces import Account, AccountStatus
from tenancy.ownership import create_account_not_found, is_living_account
from tenancy.sources import create_id, create_secret, read_unix_us
from tenancy.store import ActingStore
from tenancy.tables import accounts, payload_logs
from tenancy.validation import (
    check_models,
    check_name,
    check_page_size,
    check_priority,
    check_regions,
)


class AccountStore(ActingStore):
    """Creates, lists and changes accounts."""

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
        self._require_platform()
        given = AccountChange(
            name=name,
            allowed_regions=allowed_regions,
            allowed_models=allowed_models,
            retention=retention,
            priority=priority,
        )
        account_id = AccountId(create_id(self._randomness))
        columns = _to_columns(given)
        row = {
            "account_id": account_id,
            "status": AccountStatus.ACTIVE,
            "created_unix_us": read_unix_us(self._clock),
            "cache_salt_generation": 1,
            "cache_secret": create_secret(self._randomness),
            "master_key_version": self._keys.master_keys.current_version,
            **columns,
        }
        async with self._change(Action.ACCOUNT_CREATE, moves_epoch=False) as change:
            result = await change.connection.execute(
                insert(accounts).values(row).returning(accounts)
            )
            await create_data_key(change.connection, account_id, self._keys, self._randomness)
            change.note(account_id, account_id, **columns)
            return _to_account(result.one())

    async def get_account(self, account_id: AccountId) -> Account:
        """Raises: `NotFound`."""
        self._require_own(account_id)
        async with self._database.read() as connection:
            query = select(accounts).where(is_living_account(account_id))
            row = (await connection.execute(query)).one_or_none()
        if row is None:
            raise create_account_not_found()
        return _to_account(row)

    async def list_accounts(
        self, *, limit: int = 100, after: AccountId | None = None
    ) -> list[Account]:
        """At most `limit` accounts in order of id, those after `after`."""
        self._require_platform()
        query = (
            select(accounts)
            .where(accounts.c.purged_unix_us.is_(None))
            .order_by(accounts.c.account_id)
            .limit(check_page_size(limit))
        )
        if after is not None:
            if not is_account_id(after):
                raise InvalidRequest("`after` is not an account id.", param="after")
            query = query.where(accounts.c.account_id > after)
        async with self._database.read() as connection:
            return [_to_account(row) for row in await connection.execute(query)]

    async def change_account(self, account_id: AccountId, change: AccountChange) -> Account:
        """Takes effect with the next epoch. Raises: `NotFound`, `InvalidRequest`."""
        columns = _to_columns(change)
        if not columns:
            raise InvalidRequest("There is nothing to change.")
        return await self._update_account(Action.ACCOUNT_UPDATE, account_id, columns, columns)

    async def set_account_status(self, account_id: AccountId, status: AccountStatus) -> Account:
        """Suspends or resumes; takes effect with the next epoch. Raises: `NotFound`."""
        return await self.change_account(account_id, AccountChange(status=status))

    async def set_account_metered(self, account_id: AccountId, is_metered: bool) -> Account:
        """Whether the account pays; takes effect with the next epoch. Raises: `NotFound`."""
        return await self.change_account(account_id, AccountChange(is_metered=is_metered))

    async def rotate_cache_salt(self, account_id: AccountId) -> Account:
        """Makes every cached prefix of the account unreachable, for ever. Raises: `NotFound`."""
        columns = {
            "cache_salt_generation": accounts.c.cache_salt_generation + 1,
            "cache_secret": create_secret(self._randomness),
            "master_key_version": self._keys.master_keys.current_version,
        }
        return await self._update_account(Action.CACHE_SALT_ROTATE, account_id, columns, {})

    async def purge_account(self, account_id: AccountId) -> None:
        """Removes a suspended account with all it owns and shreds its keys.

        The id stays taken, so that books and audit log never point at somebody else.
        Raises: `NotFound`, `Conflict` unless it is suspended.
        """
        self._require_platform()
        async with self._change(Action.ACCOUNT_PURGE) as change:
            await purge_account(change.connection, account_id, read_unix_us(self._clock))
            change.note(account_id, account_id)

    async def _update_account(
        self,
        action: Action,
        account_id: AccountId,
        columns: dict[str, Any],
        details: dict[str, Any],
    ) -> Account:
        """The account with `columns` set."""
        self._require_platform()
        statement = (
            update(accounts)
            .where(is_living_account(account_id))
            .values(columns)
            .returning(accounts)
        )
        async with self._change(action) as change:
            row = (await change.connection.execute(statement)).one_or_none()
            if row is None:
                raise create_account_not_found()
            if "payload_days" in columns:
                of_it = payload_logs.c.account_id == account_id
                await change.connection.execute(delete(payload_logs).where(of_it))
            change.note(account_id, account_id, **details)
            return _to_account(row)


def to_regions(names: Collection[str] | None) -> tuple[RegionId, ...] | None:
    """The regions a stored list names; without a list, None, which is any."""
    return None if names is None else tuple(RegionId(name) for name in names)


def to_models(patterns: Collection[str] | None) -> tuple[str, ...] | None:
    """The patterns of a stored list; without a list, None, which is any model."""
    return None if patterns is None else tuple(patterns)


def _to_columns(change: AccountChange) -> dict[str, Any]:
    """The columns that `change` sets, checked. Raises: `InvalidRequest`."""
    columns: dict[str, Any] = {}
    if change.name is not UNSET:
        columns["name"] = check_name(change.name)
    if change.status is not UNSET:
        columns["status"] = change.status
    if change.allowed_regions is not UNSET:
        regions = check_regions(change.allowed_regions)
        columns["allowed_regions"] = None if regions is None else list(regions)
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
    return columns


def _to_account(row: Row[Any]) -> Account:
    """The account a row describes."""
    return Account(
        account_id=AccountId(row.account_id),
        name=row.name,
        status=AccountStatus(row.status),
        created_unix_s=row.created_unix_us // 1_000_000,
        cache_salt_generation=row.cache_salt_generation,
        retention=RetentionClass(row.retention),
        allowed_regions=to_regions(row.allowed_regions),
        allowed_models=to_models(row.allowed_models),
        priority=row.priority,
        is_metered=row.is_metered,
        payload_days=row.payload_days,
    )
