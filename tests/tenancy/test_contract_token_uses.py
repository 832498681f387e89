"""When API tokens were last used, on every back end and by several gateways at once."""

import asyncio
import secrets
from contextlib import AbstractAsyncContextManager

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from contracts.errors import NotFound
from contracts.ids import AccountId, ApiTokenId
from tenancy.db import Database
from tenancy.directory import create_tenancy
from tenancy.encryption.key_ring import KeyRing
from tenancy.interfaces import AccountStatus, Permission
from tenancy.tokens import uses
from tests.fixtures.acting_tenancy import ActingTenancy
from tests.tenancy.manual_clock import ManualClock

READ = frozenset({Permission.WORKERS_AI_READ})
NUM_TOKENS = 100


async def issue(tenancy: ActingTenancy, account_id: AccountId) -> ApiTokenId:
    """A new token's id."""
    return (await tenancy.create_api_token(account_id, "t", READ)).api_token.api_token_id


async def read_uses(tenancy: ActingTenancy, account_id: AccountId) -> dict[str, int | None]:
    """Each token's last use."""
    tokens = await tenancy.list_api_tokens(account_id)
    return {token.api_token_id: token.last_used_unix_s for token in tokens}


async def test_the_last_use_moves_forward_and_never_back(tenancy: ActingTenancy) -> None:
    account = (await tenancy.create_account("a")).account_id
    used, idle = await issue(tenancy, account), await issue(tenancy, account)
    for noted, expected in ((50, 50), (70, 70), (60, 70), (70, 70)):
        await tenancy.note_api_token_uses({used: noted})
        assert await read_uses(tenancy, account) == {used: expected, idle: None}
        assert (await tenancy.get_api_token(account, used)).last_used_unix_s == expected


async def test_each_token_has_a_time_of_its_own(tenancy: ActingTenancy) -> None:
    account = (await tenancy.create_account("a")).account_id
    noted = {await issue(tenancy, account): 100 + number for number in range(5)}
    await tenancy.note_api_token_uses(noted)
    assert await read_uses(tenancy, account) == noted
    await tenancy.note_api_token_uses({})
    assert await read_uses(tenancy, account) == noted


async def test_more_uses_than_one_transaction_takes_are_all_noted(
    tenancy: ActingTenancy, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = (await tenancy.create_account("a")).account_id
    noted = {await issue(tenancy, account): 100 + number for number in range(7)}
    monkeypatch.setattr(uses, "BATCH", 3)
    begun = list[int]()
    write = Database.write

    def count(database: Database) -> AbstractAsyncContextManager[AsyncConnection]:
        begun.append(1)
        return write(database)

    monkeypatch.setattr(Database, "write", count)
    await tenancy.note_api_token_uses(noted)
    assert len(begun) == 3  # others have their turn between them
    assert await read_uses(tenancy, account) == noted


async def test_a_use_is_neither_a_change_nor_an_entry(tenancy: ActingTenancy) -> None:
    account = (await tenancy.create_account("a")).account_id
    token = await issue(tenancy, account)
    before = await tenancy.get_api_token(account, token)
    epoch = await tenancy.read_epoch()
    num_entries = (await tenancy.verify_audit_log()).num_entries
    await tenancy.note_api_token_uses({token: 50})
    after = await tenancy.get_api_token(account, token)
    assert after.last_used_unix_s == 50  # the control
    assert after.modified_unix_s == before.modified_unix_s
    assert await tenancy.read_epoch() == epoch
    assert (await tenancy.verify_audit_log()).num_entries == num_entries


async def test_what_is_gone_is_not_revived(tenancy: ActingTenancy) -> None:
    ended, living = [(await tenancy.create_account(name)).account_id for name in ("a", "b")]
    gone, deleted, kept = [await issue(tenancy, account) for account in (ended, living, living)]
    await tenancy.set_account_status(ended, AccountStatus.SUSPENDED)
    await tenancy.purge_account(ended)
    await tenancy.delete_api_token(living, deleted)
    await tenancy.note_api_token_uses({gone: 50, deleted: 50, kept: 50, ApiTokenId("x"): 50})
    assert await read_uses(tenancy, living) == {kept: 50}
    with pytest.raises(NotFound):
        await tenancy.list_api_tokens(ended)


async def test_gateways_that_write_at_once_agree_on_the_latest(
    tenancy: ActingTenancy, database_url: str, key_ring: KeyRing, clock: ManualClock
) -> None:
    account = (await tenancy.create_account("a")).account_id
    tokens = [await issue(tenancy, account) for _ in range(NUM_TOKENS)]
    gateways = [create_tenancy(database_url, key_ring, clock, secrets.token_bytes) for _ in "abcd"]

    async def write(number: int) -> None:
        """One gateway's minutes, its tokens in an order of its own."""
        order = tokens[number:] + tokens[:number] if number % 2 else tokens[::-1]
        for minute in range(10):
            at = 1000 + 60 * ((minute + 3 * number) % 10) + number
            await gateways[number].note_api_token_uses(dict.fromkeys(order, at))

    await asyncio.gather(*[write(number) for number in range(len(gateways))])
    assert set((await read_uses(tenancy, account)).values()) == {1000 + 60 * 9 + 3}
    for gateway in gateways:
        await gateway.close()
