"""Data keys: one per account, wrapped by the ring, re-wrapped by rotation, gone with a purge."""

import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from sqlalchemy import text

from contracts.errors import Conflict, InvariantBroken, NotFound
from contracts.ids import AccountId
from contracts.quotas import QuotaLimits, QuotaScope
from tenancy.audit.entries import AuditFilter
from tenancy.db import Database, create_engine, parse_database_url
from tenancy.directory import create_tenancy
from tenancy.encryption.key_ring import KeyRing, VersionedKeys
from tenancy.interfaces import AccountStatus
from tenancy.permissions import Permission
from tests.fixtures.acting_tenancy import ActingTenancy
from tests.tenancy.manual_clock import ManualClock

EMAIL = "canary@example.org"
KEYS = {version: bytes([version]) * 32 for version in (1, 2)}
PEPPERS = VersionedKeys(1, {1: bytes([9]) * 32})
OLD = KeyRing(PEPPERS, VersionedKeys(1, {1: KEYS[1]}))
BOTH = KeyRing(PEPPERS, VersionedKeys(2, KEYS))
NEW = KeyRing(PEPPERS, VersionedKeys(2, {2: KEYS[2]}))
READ = frozenset({Permission.WORKERS_AI_READ})


@asynccontextmanager
async def open_tenancy(url: str, ring: KeyRing) -> AsyncGenerator[ActingTenancy]:
    """The tenancy at `url` under `ring`."""
    tenancy = ActingTenancy(create_tenancy(url, ring, ManualClock(0), secrets.token_bytes))
    try:
        yield tenancy
    finally:
        await tenancy.close()


async def read_all(url: str, statement: str) -> list[tuple[object, ...]]:
    """Rows as a thief of the database reads them."""
    database = Database(create_engine(parse_database_url(url)))
    async with database.read() as connection:
        rows = [tuple(row) for row in await connection.execute(text(statement))]
    await database.close()
    return rows


async def create_member(tenancy: ActingTenancy) -> AccountId:
    """An account with one member."""
    account = await tenancy.create_account("a")
    await tenancy.add_member(account.account_id, EMAIL)
    return account.account_id


async def test_an_address_is_readable_for_its_account_and_not_in_the_database(
    tenancy: ActingTenancy, database_url: str
) -> None:
    account_id = await create_member(tenancy)
    (member,) = await tenancy.list_members(account_id)
    assert member.email == EMAIL
    assert await tenancy.get_member(account_id, member.member_id) == member
    ((sealed,),) = await read_all(database_url, "SELECT sealed_email FROM members")
    assert b"canary" not in bytes(sealed)  # type: ignore[call-overload]


async def test_rotation_wraps_every_key_anew_and_changes_nothing_else(database_url: str) -> None:
    async with open_tenancy(database_url, OLD) as tenancy:
        account_ids = [await create_member(tenancy) for _ in range(3)]
        assert await tenancy.rewrap_data_keys() == 0
    before = await read_all(database_url, "SELECT member_id, sealed_email FROM members")
    async with open_tenancy(database_url, BOTH) as tenancy:
        assert await tenancy.rewrap_data_keys() == 3
        assert await tenancy.rewrap_data_keys() == 0
    assert await read_all(database_url, "SELECT member_id, sealed_email FROM members") == before
    async with open_tenancy(database_url, NEW) as tenancy:
        for account_id in account_ids:
            assert [m.email for m in await tenancy.list_members(account_id)] == [EMAIL]
    async with open_tenancy(database_url, OLD) as tenancy:
        with pytest.raises(InvariantBroken):
            await tenancy.list_members(account_ids[0])


async def test_a_purge_leaves_nothing_of_the_account_but_its_id(
    tenancy: ActingTenancy, database_url: str
) -> None:
    account_id, other = await create_member(tenancy), await create_member(tenancy)
    issued = await tenancy.create_api_token(account_id, "t", READ)
    await tenancy.set_quota(QuotaScope(account_id), QuotaLimits(requests_per_min=1))
    with pytest.raises(Conflict):
        await tenancy.purge_account(account_id)
    await tenancy.set_account_status(account_id, AccountStatus.SUSPENDED)
    epoch = await tenancy.read_epoch()
    await tenancy.purge_account(account_id)
    assert await tenancy.read_epoch() > epoch
    assert await tenancy.find_principal(issued.value.reveal()) is None
    for call in (
        lambda: tenancy.get_account(account_id),
        lambda: tenancy.list_api_tokens(account_id),
        lambda: tenancy.list_members(account_id),
        lambda: tenancy.list_quotas(account_id),
        lambda: tenancy.create_api_token(account_id, "t", READ),
        lambda: tenancy.add_member(account_id, EMAIL),
        lambda: tenancy.set_quota(QuotaScope(account_id), QuotaLimits()),
        lambda: tenancy.set_account_status(account_id, AccountStatus.ACTIVE),
        lambda: tenancy.rotate_cache_salt(account_id),
        lambda: tenancy.purge_account(account_id),
    ):
        with pytest.raises(NotFound):
            await call()
    assert [account.account_id for account in await tenancy.list_accounts()] == [other]
    for table in ("api_tokens", "members", "quotas", "data_keys"):
        rows = await read_all(
            database_url, f"SELECT count(*) FROM {table} WHERE account_id = '{account_id}'"
        )
        assert rows == [(0,)], table
    left = await read_all(
        database_url, f"SELECT name, cache_secret FROM accounts WHERE account_id = '{account_id}'"
    )
    assert left == [("(purged)", None)]
    assert [m.email for m in await tenancy.list_members(other)] == [EMAIL]  # the control


async def test_without_its_data_key_an_account_is_shredded(
    tenancy: ActingTenancy, database_url: str
) -> None:
    """Even a copy of the sealed rows is of no use once the key is gone."""
    account_id = await create_member(tenancy)
    database = Database(create_engine(parse_database_url(database_url)))
    async with database.write() as connection:
        await connection.execute(text("DELETE FROM data_keys"))
    await database.close()
    assert await tenancy.list_members(account_id) == []


async def test_rewrapping_is_recorded(database_url: str) -> None:
    async with open_tenancy(database_url, OLD) as tenancy:
        await create_member(tenancy)
    async with open_tenancy(database_url, BOTH) as tenancy:
        await tenancy.rewrap_data_keys()
        (entry,) = await tenancy.list_audit_entries(AuditFilter(action="data_key.rewrap"))
    assert (entry.resource_id, entry.details) == ("2", '{"count":1}')
