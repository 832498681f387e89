"""Accounts in the database: `AccountAdministration` on SQLAlchemy.

Owns the statements on `accounts`; must not know credentials. Every change that a cached principal
depends on bumps the epoch. Read next: `tenancy.accounts.purge`, `tenancy.tokens.store`.
"""

from typing import Any

from sqlalchemy import delete, insert, select, update

from contracts.grant import RetentionClass
from contracts.ids import AccountId, RegionId
from tenancy.accounts.purge import purge_account
from tenancy.accounts.rows import select_page, to_account, to_columns
from tenancy.changes import AccountChange, Action
from tenancy.encryption.data_keys import create_data_key
from tenancy.interfaces import Account, AccountStatus
from tenancy.ownership import create_account_not_found, is_living_account
from tenancy.sources import create_id, create_secret, read_unix_us
from tenancy.store import ActingStore
from tenancy.tables import accounts, payload_logs


class AccountStore(ActingStore):
    """Creates, lists and changes accounts."""

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
        self._require_platform()
        given = AccountChange(
            name=name,
            allowed_regions=allowed_regions,
            allowed_jurisdictions=allowed_jurisdictions,
            preferred_regions=preferred_regions,
            preferred_jurisdictions=preferred_jurisdictions,
            allowed_models=allowed_models,
            retention=retention,
            priority=priority,
        )
        account_id = AccountId(create_id(self._randomness))
        columns = to_columns(given)
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
            return to_account(result.one())

    async def get_account(self, account_id: AccountId) -> Account:
        """Raises: `NotFound`."""
        self._require_own(account_id)
        async with self._database.read() as connection:
            query = select(accounts).where(is_living_account(account_id))
            row = (await connection.execute(query)).one_or_none()
        if row is None:
            raise create_account_not_found()
        return to_account(row)

    async def list_accounts(
        self, *, limit: int = 100, after: AccountId | None = None
    ) -> list[Account]:
        """At most `limit` accounts in order of id, those after `after`."""
        self._require_platform()
        query = select_page(limit, after)
        async with self._database.read() as connection:
            return [to_account(row) for row in await connection.execute(query)]

    async def change_account(self, account_id: AccountId, change: AccountChange) -> Account:
        """Takes effect with the next epoch. Raises: `NotFound`, `InvalidRequest`."""
        columns = to_columns(change)
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
            return to_account(row)
