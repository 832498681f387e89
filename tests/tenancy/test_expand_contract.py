"""The version before this one, working on this one's schema while gateways are replaced.

What it writes and reads is kept here as it was: statements with the columns of revision 0002.
"""

import ipaddress
import json

import msgspec
import pytest
from sqlalchemy import text

from contracts.batches import BatchBounds, NewBatch
from contracts.ids import (
    AccountId,
    ApiTokenId,
    ModelName,
    NodeId,
    RegionId,
    create_request_id,
)
from contracts.usage import NodePlace
from tenancy.db import Database, create_engine, parse_database_url
from tenancy.encryption.cache_salt import derive_cache_salt
from tenancy.encryption.key_ring import KeyRing
from tenancy.interfaces import ApiTokenStatus
from tenancy.permissions import Permission
from tenancy.policies import EVERYTHING, AddressCondition, Effect, Policies, Policy, allow
from tenancy.tokens.digests import digest_issued
from tenancy.tokens.format import CredentialKind, create_credential
from tests.fixtures.acting_tenancy import ActingTenancy
from tests.tenancy.test_contract_usage import DAY, record

READ = frozenset({Permission.WORKERS_AI_READ})
ACCOUNT, TOKEN = "a" * 32, "b" * 32
INSERT_ACCOUNT = """
INSERT INTO accounts (account_id, name, status, created_unix_us, cache_salt_generation,
    master_key_version, retention, priority, allowed_regions)
VALUES (:id, 'old', 'active', 1, 1, 1, 'standard', 0, NULL)
"""
INSERT_TOKEN = """
INSERT INTO api_tokens (api_token_id, account_id, name, hint, status, permissions, digest,
    pepper_version, issued_unix_us, not_before_unix_s, expires_unix_s)
VALUES (:id, :account, 'old', 'hearth_pat_old0', 'active', :permissions, :digest, 1, 1, NULL, NULL)
"""
DISABLE_TOKEN = """
UPDATE api_tokens SET status = 'disabled', modified_unix_us = 2 WHERE api_token_id = :id
"""
LOSE_ITEMS = """
UPDATE batch_items SET owner = NULL, held_until_unix_ms = 0 WHERE request_id IS NOT NULL
"""
INSERT_USAGE = """
INSERT INTO usage_ledger (day, request_id, account_id, api_token_id, model, node_id, region,
    gateway_id, finished_unix_ms, outcome, num_uncached, num_cached, num_output, num_reasoning,
    price_version, cost_nano, num_microneurons)
VALUES (:day, :id, 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', 'bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb',
    '@hearth/tiny-chat', 'node-1', 'weur', 'gateway-1', 1699920001500, 'complete', 1, 2, 3, 4,
    1, 7, 5)
"""
SELECT_USAGE = "SELECT node_id, region, cost_nano FROM usage_ledger ORDER BY request_id"
SELECT_ITEMS = "SELECT num_lost, request_id FROM batch_items"
SELECT_RIGHTS = "SELECT permissions, status FROM api_tokens WHERE api_token_id = :id"


async def execute(url: str, statement: str, **values: object) -> list[tuple[object, ...]]:
    """One statement of the older version."""
    database = Database(create_engine(parse_database_url(url)))
    async with database.write() as connection:
        result = await connection.execute(text(statement), values)
        rows = [tuple(row) for row in result] if result.returns_rows else []
    await database.close()
    return rows


async def test_what_the_older_version_writes_is_read_in_full(
    tenancy: ActingTenancy, database_url: str, key_ring: KeyRing
) -> None:
    value = create_credential(CredentialKind.API_TOKEN, lambda size: bytes(range(size)))
    await execute(database_url, INSERT_ACCOUNT, id=ACCOUNT)
    await execute(
        database_url,
        INSERT_TOKEN,
        id=TOKEN,
        account=ACCOUNT,
        permissions=json.dumps(sorted(READ)),
        digest=digest_issued(value, key_ring.peppers.current),
    )
    principal = await tenancy.find_principal(value.reveal())
    assert principal is not None
    assert principal.permissions == READ
    assert (principal.models, principal.condition) == (None, None)
    master_key = key_ring.master_keys.current
    assert principal.cache_salt == derive_cache_salt(master_key, AccountId(ACCOUNT), 1, None)
    stored = await tenancy.get_api_token(ACCOUNT, TOKEN)
    assert stored.policies == allow(READ)
    assert stored.last_used_unix_s is None
    assert stored.modified_unix_s == stored.issued_unix_s
    disabled = await tenancy.set_api_token_status(ACCOUNT, TOKEN, ApiTokenStatus.DISABLED)
    assert disabled.policies == allow(READ)
    # The account had no data key; it gets one when it needs one.
    assert (await tenancy.add_member(ACCOUNT, "a@example.org")).email == "a@example.org"


@pytest.mark.parametrize(
    ("policies", "condition", "expected"),
    [
        (allow(READ), None, sorted(READ)),
        ((Policy(Effect.ALLOW, READ, ("@a/*",)),), None, []),
        (
            (Policy(Effect.ALLOW, READ, (EVERYTHING,)), Policy(Effect.DENY, READ, ("@a/*",))),
            None,
            [],
        ),
        (allow(READ), AddressCondition(allowed=(ipaddress.ip_network("10.0.0.0/8"),)), []),
    ],
)
async def test_the_older_version_never_reads_more_rights_than_were_granted(
    tenancy: ActingTenancy,
    database_url: str,
    policies: Policies,
    condition: AddressCondition | None,
    expected: list[str],
) -> None:
    account = await tenancy.create_account("new")
    issued = await tenancy.create_api_token(account.account_id, "t", policies, condition=condition)
    ((permissions, status),) = await execute(
        database_url, SELECT_RIGHTS, id=issued.api_token.api_token_id
    )
    read = json.loads(permissions) if isinstance(permissions, str) else permissions
    assert (read, status) == (expected, "active")


async def test_the_older_version_notes_no_use_and_loses_none(
    tenancy: ActingTenancy, database_url: str
) -> None:
    account = await tenancy.create_account("new")
    issued = await tenancy.create_api_token(account.account_id, "t", allow(READ))
    token_id = issued.api_token.api_token_id
    await tenancy.note_api_token_uses({token_id: 50})
    await execute(database_url, DISABLE_TOKEN, id=token_id)
    disabled = await tenancy.get_api_token(account.account_id, token_id)
    assert (disabled.status, disabled.last_used_unix_s) == (ApiTokenStatus.DISABLED, 50)


async def test_losses_of_items_are_counted_alike_by_the_older_version(
    tenancy: ActingTenancy, database_url: str
) -> None:
    """It leaves an item its request id, and counts one more with each claim that finds an id."""

    async def count_as_before() -> int:
        ((num_lost, request_id),) = await execute(database_url, SELECT_ITEMS)
        assert isinstance(num_lost, int)
        return num_lost + (request_id is not None)

    account = await tenancy.create_account("a")
    batch_id = create_request_id(1_700_000_000_000, 1)
    batch = NewBatch(
        batch_id=batch_id,
        account_id=account.account_id,
        api_token_id=ApiTokenId(TOKEN),
        model=ModelName("@a/b"),
        items=(b"a",),
        due_unix_ms=2**50,
        expires_unix_ms=2**50,
    )
    await tenancy.create_batch(batch, BatchBounds(max_batches=1, max_bytes=100))
    (item,) = await tenancy.claim_batch_items("old", 1, 1000)
    await execute(database_url, LOSE_ITEMS)
    (again,) = await tenancy.claim_batch_items("new", 1, 1000)
    item = msgspec.structs.replace(item, earlier_places=None)  # it told nothing of its run
    assert again == msgspec.structs.replace(item, num_lost=1, claim=2)
    await tenancy.put_back_batch_item(again, "new", 0, is_lost=False)
    assert await count_as_before() == 1
    (third,) = await tenancy.claim_batch_items("new", 1, 1000)
    assert third == msgspec.structs.replace(item, num_lost=1, claim=3)
    await tenancy.release_batch_items("new")
    assert await count_as_before() == 2
    (fourth,) = await tenancy.claim_batch_items("new", 1, 1000)
    assert fourth == msgspec.structs.replace(item, num_lost=2, claim=4)
    await tenancy.put_back_batch_item(fourth, "new", 0, is_lost=True)
    assert await count_as_before() == 3


async def test_what_the_older_version_adds_to_the_ledger_says_nothing_of_earlier_places(
    tenancy: ActingTenancy, database_url: str
) -> None:
    """And what this one adds is read by it: the columns that it knows are as they were."""
    place = NodePlace(NodeId("node-1"), RegionId("weur"))
    await tenancy.append_usage([record(1, earlier_places=(place,))], "new")
    await execute(database_url, INSERT_USAGE, id=record(2).request_id, day=DAY)
    told = await tenancy.list_usage_records(AccountId(ACCOUNT), DAY)
    assert [one.earlier_places for one in told] == [(place,), None]
    assert told[1] == record(2, api_token_id=ApiTokenId(TOKEN))
    rows = await execute(database_url, SELECT_USAGE)
    assert rows == [("node-1", "weur", 7), ("node-1", "weur", 7)]
