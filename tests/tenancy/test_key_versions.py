"""New versions of keys beside old rows, on real databases."""

import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from contracts.errors import InvariantBroken
from tenancy.directory import create_tenancy
from tenancy.encryption.cache_salt import derive_cache_salt
from tenancy.encryption.key_ring import KeyRing, VersionedKeys
from tenancy.interfaces import Permission
from tests.fixtures.acting_tenancy import ActingTenancy
from tests.tenancy.manual_clock import ManualClock
from tests.tenancy.test_expand_contract import execute

FIRST, SECOND = bytes([1]) * 32, bytes([2]) * 32
BOTH = {1: FIRST, 2: SECOND}
OLD_RING = KeyRing(VersionedKeys(1, {1: FIRST}), VersionedKeys(1, {1: FIRST}))
BOTH_RING = KeyRing(VersionedKeys(2, BOTH), VersionedKeys(2, BOTH))
SELECT_SECRET = "SELECT cache_secret FROM accounts"
NEW_RING = KeyRing(VersionedKeys(2, {2: SECOND}), VersionedKeys(2, {2: SECOND}))


@asynccontextmanager
async def open_tenancy(url: str, ring: KeyRing) -> AsyncGenerator[ActingTenancy]:
    """The tenancy at `url` under `ring`."""
    tenancy = ActingTenancy(create_tenancy(url, ring, ManualClock(0), secrets.token_bytes))
    try:
        yield tenancy
    finally:
        await tenancy.close()


async def test_credentials_outlive_a_new_pepper_until_the_old_one_is_dropped(
    database_url: str,
) -> None:
    async with open_tenancy(database_url, OLD_RING) as tenancy:
        account = await tenancy.create_account("a")
        old = await tenancy.create_api_token(account.account_id, "old", frozenset(Permission))
        old_operator = await tenancy.create_operator("old")
    async with open_tenancy(database_url, BOTH_RING) as tenancy:
        new = await tenancy.create_api_token(account.account_id, "new", frozenset(Permission))
        for issued in (old, new):
            principal = await tenancy.find_principal(issued.value.reveal())
            assert principal is not None
            assert principal.api_token_id == issued.api_token.api_token_id
        assert await tenancy.find_operator(old_operator.value.reveal()) is not None
        await tenancy.rotate_cache_salt(account.account_id)
    async with open_tenancy(database_url, NEW_RING) as tenancy:
        assert await tenancy.find_principal(new.value.reveal()) is not None
        assert await tenancy.find_principal(old.value.reveal()) is None
        assert await tenancy.find_operator(old_operator.value.reveal()) is None


async def test_a_salt_keeps_its_master_key_until_it_is_rotated(database_url: str) -> None:
    async with open_tenancy(database_url, OLD_RING) as tenancy:
        account = await tenancy.create_account("a")
        issued = await tenancy.create_api_token(account.account_id, "t", frozenset(Permission))
    async with open_tenancy(database_url, BOTH_RING) as tenancy:
        before = await tenancy.find_principal(issued.value.reveal())
        ((first,),) = await execute(database_url, SELECT_SECRET)
        await tenancy.rotate_cache_salt(account.account_id)
        after = await tenancy.find_principal(issued.value.reveal())
        ((second,),) = await execute(database_url, SELECT_SECRET)
    assert isinstance(first, bytes)
    assert isinstance(second, bytes)
    assert before is not None
    assert after is not None
    assert before.cache_salt == derive_cache_salt(FIRST, account.account_id, 1, first)
    assert after.cache_salt == derive_cache_salt(SECOND, account.account_id, 2, second)
    assert first != second


async def test_a_lost_master_key_stops_the_account_instead_of_changing_its_salt(
    database_url: str,
) -> None:
    ring = KeyRing(BOTH_RING.peppers, OLD_RING.master_keys)
    async with open_tenancy(database_url, ring) as tenancy:
        account = await tenancy.create_account("a")
        issued = await tenancy.create_api_token(account.account_id, "t", frozenset(Permission))
    async with open_tenancy(database_url, NEW_RING) as tenancy:
        with pytest.raises(InvariantBroken, match="key ring"):
            await tenancy.find_principal(issued.value.reveal())
