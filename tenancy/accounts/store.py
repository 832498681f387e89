"""Accounts in the database: `AccountDirectory` on SQLAlchemy.

Owns the statements on `accounts`; must not know credentials. Every change that a cached principal
depends on bumps the epoch. Read next: `tenancy.tokens.store`.
"""

from collections.abc import Collection
from typing import Any

from sqlalchemy import Row, insert, select, update

from contracts.errors import InvalidRequest, NotFound
from contracts.grant import RetentionClass
from contracts.ids import AccountId, RegionId, is_account_id
from tenancy.interfaces import Account, AccountStatus
from tenancy.sources import create_id, read_unix_us
from tenancy.store import Store
from tenancy.tables import accounts
from tenancy.validation import check_name, check_page_size, check_regions


class AccountStore(Store):
    """Creates, lists and changes accounts."""

    async def create_account(
        self, name: str, *, allowed_regions: tuple[RegionId, ...] | None = None
    ) -> Account:
        """The new account. Raises: `InvalidRequest` for an empty or overlong name."""
        regions = check_regions(allowed_regions)
        row = {
            "account_id": create_id(self._randomness),
            "name": check_name(name),
            "status": AccountStatus.ACTIVE,
            "created_unix_us": read_unix_us(self._clock),
            "cache_salt_generation": 1,
            "master_key_version": self._key_ring.master_keys.current_version,
            "retention": RetentionClass.STANDARD,
            "priority": 0,
            "allowed_regions": None if regions is None else list(regions),
        }
        async with self._database.write() as connection:
            result = await connection.execute(insert(accounts).values(row).returning(accounts))
            return _to_account(result.one())

    async def get_account(self, account_id: AccountId) -> Account:
        """Raises: `NotFound`."""
        _require_account_id(account_id)
        async with self._database.read() as connection:
            query = select(accounts).where(accounts.c.account_id == account_id)
            row = (await connection.execute(query)).one_or_none()
        if row is None:
            raise create_account_not_found()
        return _to_account(row)

    async def list_accounts(
        self, *, limit: int = 100, after: AccountId | None = None
    ) -> list[Account]:
        """At most `limit` accounts in order of id, those after `after`."""
        query = select(accounts).order_by(accounts.c.account_id).limit(check_page_size(limit))
        if after is not None:
            if not is_account_id(after):
                raise InvalidRequest("`after` is not an account id.", param="after")
            query = query.where(accounts.c.account_id > after)
        async with self._database.read() as connection:
            return [_to_account(row) for row in await connection.execute(query)]

    async def set_account_status(self, account_id: AccountId, status: AccountStatus) -> Account:
        """Suspends or resumes; takes effect with the next epoch. Raises: `NotFound`."""
        return await self._change(account_id, {"status": status})

    async def rotate_cache_salt(self, account_id: AccountId) -> Account:
        """Makes every cached prefix of the account unreachable. Raises: `NotFound`."""
        return await self._change(
            account_id,
            {
                "cache_salt_generation": accounts.c.cache_salt_generation + 1,
                "master_key_version": self._key_ring.master_keys.current_version,
            },
        )

    async def _change(self, account_id: AccountId, values: dict[str, Any]) -> Account:
        """The account with `values` set, the epoch bumped in the same transaction."""
        _require_account_id(account_id)
        statement = (
            update(accounts)
            .where(accounts.c.account_id == account_id)
            .values(values)
            .returning(accounts)
        )
        async with self._write_and_bump() as connection:
            row = (await connection.execute(statement)).one_or_none()
            if row is None:
                raise create_account_not_found()
            return _to_account(row)


def create_account_not_found() -> NotFound:
    """The error for an account id that nobody has."""
    return NotFound("There is no account with this id.", param="account_id")


def to_regions(names: Collection[str] | None) -> tuple[RegionId, ...] | None:
    """The regions a stored list names; without a list, None, which is any."""
    return None if names is None else tuple(RegionId(name) for name in names)


def _require_account_id(account_id: AccountId) -> None:
    """Answers for ids that no account can have without asking the database."""
    if not is_account_id(account_id):
        raise create_account_not_found()


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
    )
