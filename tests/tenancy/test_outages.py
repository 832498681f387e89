"""A database that is away: every method answers `StoreUnavailable`, nothing else leaves."""

import asyncio
import secrets
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

from contracts.batches import BatchBounds, BatchItem, NewBatch
from contracts.errors import StoreUnavailable
from contracts.finetunes import AdapterConfig, FinetuneUpload, NewFinetune, StoredWeights
from contracts.fleet_view import PlacementRule
from contracts.ids import (
    AccountId,
    ApiTokenId,
    FinetuneId,
    GatewayId,
    ModelName,
    NodeId,
    RegionId,
    create_request_id,
)
from contracts.payloads import NewPayload
from contracts.pricing import TokenRates
from contracts.quotas import QuotaLimits, QuotaScope
from contracts.usage import ExportForm, Step
from tenancy.actors import Actor, ActorKind
from tenancy.audit.entries import AuditFilter
from tenancy.changes import AccountChange, ApiTokenChange
from tenancy.directory import SqlTenancy, create_tenancy
from tenancy.encryption.key_ring import KeyRing
from tenancy.interfaces import AccountStatus, ApiTokenStatus, Permission
from tenancy.sql_administration import SqlAdministration
from tenancy.tokens.format import CredentialKind, create_credential
from tests.fixtures.acting_tenancy import ActingTenancy
from tests.fixtures.fault_proxy import FaultProxy
from tests.fixtures.free_port import find_port
from tests.tenancy.manual_clock import ManualClock
from tests.tenancy.test_contract_usage import DAY, NEURONS, record

ID = "a" * 32
ACCOUNT, TOKEN = AccountId(ID), ApiTokenId(ID)
MODEL = ModelName("@a/b")
NODE = NodeId("node-1")
GATEWAY = GatewayId("gateway-1")
BATCH = NewBatch(
    batch_id=create_request_id(1, 1),
    account_id=ACCOUNT,
    api_token_id=TOKEN,
    model=MODEL,
    items=(b"a",),
    due_unix_ms=1,
    expires_unix_ms=1,
)
ITEM = BatchItem(
    batch_id=BATCH.batch_id,
    index=0,
    account_id=ACCOUNT,
    api_token_id=TOKEN,
    model=MODEL,
    request_id=BATCH.batch_id,
    num_lost=0,
    claim=1,
    due_unix_ms=1,
    asked=b"a",
)
PAYLOAD = NewPayload(
    request_id=BATCH.batch_id,
    account_id=ACCOUNT,
    api_token_id=TOKEN,
    route="run",
    model=MODEL,
    status=200,
    began_unix_ms=1,
    asked=b"a",
    answered=b"a",
    is_cut=False,
)
FINETUNE = FinetuneId(BATCH.batch_id)
NEW_FINETUNE = NewFinetune(name="a", model=MODEL)
CONFIG = AdapterConfig(rank=1, alpha=1.0)
UPLOAD = FinetuneUpload(upload_id=ID, account_id=ACCOUNT, finetune_id=FINETUNE)
WEIGHTS = StoredWeights(sha256=bytes(32), num_bytes=1, rank=1)
OWNER = Actor(ActorKind.API_TOKEN, TOKEN, ACCOUNT)
ALL = frozenset(Permission)
API_TOKEN = create_credential(CredentialKind.API_TOKEN, secrets.token_bytes).reveal()
OPERATOR = create_credential(CredentialKind.OPERATOR, secrets.token_bytes).reveal()


async def read_export(tenancy: ActingTenancy) -> list[bytes]:
    """A whole export, which may begin before the database is asked."""
    days = range(DAY, DAY + 1)
    return [piece async for piece in tenancy.export_usage(ACCOUNT, days, ExportForm.CSV)]


CALLS: dict[str, Callable[[ActingTenancy], Awaitable[Any]]] = {
    "create_account": lambda t: t.create_account("a"),
    "get_account": lambda t: t.get_account(ACCOUNT),
    "list_accounts": lambda t: t.list_accounts(),
    "set_account_status": lambda t: t.set_account_status(ACCOUNT, AccountStatus.ACTIVE),
    "rotate_cache_salt": lambda t: t.rotate_cache_salt(ACCOUNT),
    "set_account_metered": lambda t: t.set_account_metered(ACCOUNT, False),
    "create_api_token": lambda t: t.create_api_token(ACCOUNT, "a", ALL),
    "get_api_token": lambda t: t.get_api_token(ACCOUNT, TOKEN),
    "list_api_tokens": lambda t: t.list_api_tokens(ACCOUNT),
    "set_api_token_status": lambda t: t.set_api_token_status(ACCOUNT, TOKEN, ApiTokenStatus.ACTIVE),
    "delete_api_token": lambda t: t.delete_api_token(ACCOUNT, TOKEN),
    "change_account": lambda t: t.change_account(ACCOUNT, AccountChange(name="b")),
    "purge_account": lambda t: t.purge_account(ACCOUNT),
    "change_api_token": lambda t: t.change_api_token(ACCOUNT, TOKEN, ApiTokenChange(name="b")),
    "roll_api_token": lambda t: t.roll_api_token(ACCOUNT, TOKEN),
    "add_member": lambda t: t.add_member(ACCOUNT, "a@example.org"),
    "get_member": lambda t: t.get_member(ACCOUNT, ID),
    "list_members": lambda t: t.list_members(ACCOUNT),
    "remove_member": lambda t: t.remove_member(ACCOUNT, ID),
    "delete_operator": lambda t: t.delete_operator(ID),
    "list_audit_entries": lambda t: t.list_audit_entries(AuditFilter()),
    "rewrap_data_keys": lambda t: t.rewrap_data_keys(),
    "find_principal": lambda t: t.find_principal(API_TOKEN),
    "read_epoch": lambda t: t.read_epoch(),
    "create_operator": lambda t: t.create_operator("a"),
    "find_operator": lambda t: t.find_operator(OPERATOR),
    "list_operators": lambda t: t.list_operators(),
    "set_quota": lambda t: t.set_quota(QuotaScope(ACCOUNT), QuotaLimits()),
    "delete_quota": lambda t: t.delete_quota(QuotaScope(ACCOUNT)),
    "list_quotas": lambda t: t.list_quotas(ACCOUNT),
    "set_price": lambda t: t.set_price("*", TokenRates(1, 1, 1, 1)),
    "end_price": lambda t: t.end_price("*"),
    "list_prices": lambda t: t.list_prices(),
    "append_usage": lambda t: t.append_usage([record(1)], "o"),
    "list_usage_records": lambda t: t.list_usage_records(ACCOUNT, DAY),
    "drop_usage_before": lambda t: t.drop_usage_before(0),
    "roll_up_usage": lambda t: t.roll_up_usage(),
    "list_usage": lambda t: t.list_usage(ACCOUNT, Step.DAY, DAY, DAY + 1),
    "sum_usage": lambda t: t.sum_usage(Step.DAY, DAY, DAY + 1),
    "rank_accounts": lambda t: t.rank_accounts(Step.DAY, DAY, DAY + 1),
    "export_usage": read_export,
    "verify_audit_log": lambda t: t.verify_audit_log(),
    "set_placement_rule": lambda t: t.set_placement_rule(PlacementRule(model=MODEL)),
    "list_placement_rules": lambda t: t.list_placement_rules(),
    "end_placement_rule": lambda t: t.end_placement_rule(MODEL),
    "drain_node": lambda t: t.drain_node(NODE),
    "undrain_node": lambda t: t.undrain_node(NODE),
    "note_node_key": lambda t: t.note_node_key(NODE, "k"),
    "note_enrolment": lambda t: t.note_enrolment(NODE, GATEWAY, RegionId("weur"), "k"),
    "note_removal": lambda t: t.note_removal(NODE, GATEWAY),
    "list_node_drains": lambda t: t.list_node_drains(),
    "read_budget": lambda t: t.read_budget(NEURONS),
    "lease_budget": lambda t: t.lease_budget(NEURONS, "o", 1, 1, 1),
    "renew_budgets": lambda t: t.renew_budgets("o", 1),
    "release_budget": lambda t: t.release_budget(NEURONS, "o"),
    "drop_budgets": lambda t: t.drop_budgets("o"),
    "create_batch": lambda t: t.create_batch(BATCH, BatchBounds(max_batches=1, max_bytes=1)),
    "read_batch": lambda t: t.read_batch(ACCOUNT, BATCH.batch_id),
    "claim_batch_items": lambda t: t.claim_batch_items("o", 1, 1),
    "renew_batch_items": lambda t: t.renew_batch_items("o", ["r"], 1),
    "finish_batch_item": lambda t: t.finish_batch_item(ITEM, "o", b""),
    "put_back_batch_item": lambda t: t.put_back_batch_item(ITEM, "o", 1, is_lost=True),
    "release_batch_items": lambda t: t.release_batch_items("o"),
    "count_waiting_batch_items": lambda t: t.count_waiting_batch_items(),
    "drop_expired_batches": lambda t: t.drop_expired_batches(),
    "keep_payloads": lambda t: t.keep_payloads([PAYLOAD]),
    "drop_payloads": lambda t: t.drop_payloads(1),
    "set_payload_days": lambda t: t.act_as(OWNER).set_payload_days(ACCOUNT, 1),
    "list_payloads": lambda t: t.act_as(OWNER).list_payloads(ACCOUNT),
    "read_payload": lambda t: t.act_as(OWNER).read_payload(ACCOUNT, BATCH.batch_id),
    "delete_payload": lambda t: t.act_as(OWNER).delete_payload(ACCOUNT, BATCH.batch_id),
    "delete_payloads": lambda t: t.act_as(OWNER).delete_payloads(ACCOUNT),
    "find_principal_by_id": lambda t: t.find_principal_by_id(ACCOUNT, TOKEN),
    "create_finetune": lambda t: t.create_finetune(ACCOUNT, NEW_FINETUNE, 1),
    "list_finetunes": lambda t: t.list_finetunes(ACCOUNT),
    "get_finetune": lambda t: t.get_finetune(ACCOUNT, "a"),
    "delete_finetune": lambda t: t.delete_finetune(ACCOUNT, FINETUNE),
    "set_finetune_config": lambda t: t.set_finetune_config(ACCOUNT, FINETUNE, CONFIG),
    "begin_finetune_upload": lambda t: t.begin_finetune_upload(ACCOUNT, FINETUNE, 1),
    "put_finetune_piece": lambda t: t.put_finetune_piece(UPLOAD, 0, b"a", 1),
    "finish_finetune_upload": lambda t: t.finish_finetune_upload(UPLOAD, WEIGHTS),
    "abandon_finetune_upload": lambda t: t.abandon_finetune_upload(UPLOAD),
    "find_finetune": lambda t: t.find_finetune(ACCOUNT, "a"),
    "list_public_finetune_models": lambda t: t.list_public_finetune_models(),
    "list_public_finetunes": lambda t: t.list_public_finetunes([MODEL]),
    "read_finetune_piece": lambda t: t.read_finetune_piece(WEIGHTS.sha256, 0),
    "drop_finetune_pieces": lambda t: t.drop_finetune_pieces(),
    "note_api_token_uses": lambda t: t.note_api_token_uses({TOKEN: 1}),
}


@pytest.fixture(autouse=True)
async def _driver_threads_end() -> AsyncGenerator[None]:
    """Keeps the loop open until they have: after a failed connect aiosqlite waits for no thread."""
    yield
    for thread in threading.enumerate():
        if "_connection_worker_thread" in thread.name:
            await asyncio.to_thread(thread.join, 30)


def open_tenancy(url: str, key_ring: KeyRing) -> ActingTenancy:
    """Tenancy at `url`, whether anything is there or not."""
    return ActingTenancy(create_tenancy(url, key_ring, ManualClock(0), secrets.token_bytes))


async def expect_unavailable(tenancy: ActingTenancy, calls: list[str]) -> None:
    """Each call fails as it should, and says nothing about the database's address."""
    for name in calls:
        with pytest.raises(StoreUnavailable) as failure:
            await CALLS[name](tenancy)
        assert failure.value.message == "The database cannot be reached at the moment."


def test_every_method_that_asks_the_database_is_tried() -> None:
    methods = {
        name
        for kind in (SqlTenancy, SqlAdministration)
        for name in dir(kind)
        if not name.startswith("_")
    }
    assert set(CALLS) == methods - {
        *("act_as", "close", "digest_api_token", "create_process_claim"),
        "follow_keys",
    }


async def test_nobody_listens_on_the_database_port(key_ring: KeyRing) -> None:
    tenancy = open_tenancy(f"postgresql://u@127.0.0.1:{find_port()}/d", key_ring)
    await expect_unavailable(tenancy, list(CALLS))
    await tenancy.close()


async def test_the_folder_of_the_sqlite_file_is_gone(tmp_path: Path, key_ring: KeyRing) -> None:
    tenancy = open_tenancy(f"sqlite:///{tmp_path}/nothing/a.db", key_ring)
    await expect_unavailable(tenancy, list(CALLS))
    await tenancy.close()


async def test_the_sqlite_file_is_something_else(tmp_path: Path, key_ring: KeyRing) -> None:
    (tmp_path / "a.db").write_bytes(b"not a database" * 100)
    tenancy = open_tenancy(f"sqlite:///{tmp_path}/a.db", key_ring)
    await expect_unavailable(tenancy, list(CALLS))
    await tenancy.close()


async def test_the_database_has_no_tables(tmp_path: Path, key_ring: KeyRing) -> None:
    tenancy = open_tenancy(f"sqlite:///{tmp_path}/empty.db", key_ring)
    await expect_unavailable(tenancy, list(CALLS))
    await tenancy.close()


async def test_the_database_goes_away_and_comes_back(
    postgres_database: str, key_ring: KeyRing
) -> None:
    url = make_url(postgres_database)
    proxy = FaultProxy(str(url.host), url.port or 5432)
    async with proxy.serve():
        through = url.set(host="127.0.0.1", port=proxy.port)
        tenancy = open_tenancy(through.render_as_string(hide_password=False), key_ring)
        account = await tenancy.create_account("a")
        proxy.cut()
        await expect_unavailable(tenancy, list(CALLS))
        proxy.restore()
        assert await tenancy.get_account(account.account_id) == account
        await tenancy.close()


async def test_a_restarted_server_costs_no_request(
    postgres_database: str, key_ring: KeyRing
) -> None:
    """Connections that died in the pool are replaced before they are used."""
    url = make_url(postgres_database)
    proxy = FaultProxy(str(url.host), url.port or 5432)
    async with proxy.serve():
        through = url.set(host="127.0.0.1", port=proxy.port)
        tenancy = open_tenancy(through.render_as_string(hide_password=False), key_ring)
        account = await tenancy.create_account("a")
        proxy.cut()
        proxy.restore()
        assert await tenancy.get_account(account.account_id) == account
        await tenancy.close()
