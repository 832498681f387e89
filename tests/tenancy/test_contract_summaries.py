"""Sums of whole accounts and exports, the same on every database."""

import csv
import io

import pytest

from contracts.errors import Conflict, Forbidden
from contracts.ids import AccountId
from contracts.pricing import TokenCounts
from contracts.usage import MS_PER_DAY, ExportForm, Step, UsageSummary
from tenancy.actors import Actor, ActorKind
from tenancy.usage.export import find_public_key, verify_export
from tenancy.usage.export_store import COLUMNS
from tests.fixtures.acting_tenancy import ActingTenancy
from tests.tenancy.test_contract_usage import OTHER, START_MS, record

OWNER = "gateway-1"
ACCOUNT = AccountId("a" * 32)
DAY = START_MS // MS_PER_DAY


async def fill(tenancy: ActingTenancy) -> None:
    """Two requests of one account and a dearer one of another, and one a day later."""
    await tenancy.append_usage(
        [
            record(1),
            record(2),
            record(3, START_MS + MS_PER_DAY),
            record(4, account_id=OTHER, cost_nano=10**15, tokens=TokenCounts(9, 8, 7, 6)),
        ],
        OWNER,
    )
    await tenancy.roll_up_usage()


async def test_days_and_accounts_are_added_up(tenancy: ActingTenancy) -> None:
    await fill(tenancy)
    own = await tenancy.sum_usage(Step.DAY, DAY, DAY + 2, ACCOUNT)
    assert {day: (one.num_requests, one.cost_nano) for day, one in own.items()} == {
        DAY: (2, 14),
        DAY + 1: (1, 7),
    }
    everybody = await tenancy.sum_usage(Step.DAY, DAY, DAY + 1)
    assert everybody[DAY].cost_nano == 14 + 10**15
    by_hour = await tenancy.sum_usage(Step.HOUR, DAY * 24, (DAY + 1) * 24, OTHER)
    (only,) = by_hour.values()
    assert only == UsageSummary(
        num_requests=1,
        tokens=TokenCounts(9, 8, 7, 6),
        cost_nano=10**15,
        num_microneurons=only.num_microneurons,
    )
    assert await tenancy.sum_usage(Step.DAY, DAY + 2, DAY + 9) == {}


async def test_the_dearest_account_comes_first(tenancy: ActingTenancy) -> None:
    await fill(tenancy)
    ranked = await tenancy.rank_accounts(Step.DAY, DAY, DAY + 2)
    assert [(account_id, one.num_requests) for account_id, one in ranked] == [
        (OTHER, 1),
        (ACCOUNT, 3),
    ]
    assert len(await tenancy.rank_accounts(Step.DAY, DAY, DAY + 2, limit=1)) == 1
    assert await tenancy.rank_accounts(Step.DAY, DAY + 5, DAY + 6) == []


async def test_exports_have_every_record_of_the_account_and_no_other(
    tenancy: ActingTenancy,
) -> None:
    await fill(tenancy)
    days = range(DAY, DAY + 2)
    table = b"".join([p async for p in tenancy.export_usage(ACCOUNT, days, ExportForm.CSV)])
    rows = list(csv.DictReader(io.StringIO(table.decode())))
    assert tuple(rows[0]) == COLUMNS
    assert [row["cost_nano"] for row in rows] == ["7", "7", "7"]
    assert {row["account_id"] for row in rows} == {ACCOUNT}
    lines = [p async for p in tenancy.export_usage(ACCOUNT, days, ExportForm.JSONL)]
    key = find_public_key(tenancy.directory._keys)
    header, num_records = verify_export(b"".join(lines).splitlines(keepends=True), key)
    assert (header.account_id, num_records) == (ACCOUNT, 3)


async def test_a_check_of_the_log_is_for_the_platform_and_runs_alone(
    tenancy: ActingTenancy,
) -> None:
    account = await tenancy.create_account("one")
    assert (await tenancy.verify_audit_log()).num_entries == 1
    token = Actor(ActorKind.API_TOKEN, "t", account_id=account.account_id)
    with pytest.raises(Forbidden):
        await tenancy.act_as(token).verify_audit_log()
    async with tenancy.directory._parts.checking:
        with pytest.raises(Conflict):
            await tenancy.verify_audit_log()
