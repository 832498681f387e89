"""The ledger, its sums and the slices of budgets, on every back end."""

import asyncio
import csv
import io
from typing import Any

import msgspec
import pytest

from contracts.budgets import BudgetKey, BudgetKind
from contracts.errors import Forbidden, InvalidRequest
from contracts.ids import AccountId, ApiTokenId, GatewayId, ModelName, NodeId, RegionId
from contracts.ids import create_request_id as create_id
from contracts.pricing import TokenCounts
from contracts.quotas import QuotaScope
from contracts.usage import (
    MS_PER_DAY,
    ExportForm,
    NodePlace,
    Outcome,
    Step,
    UsageCursor,
    UsageRecord,
)
from tenancy.actors import Actor, ActorKind
from tenancy.audit.entries import AuditFilter
from tenancy.usage import retention
from tenancy.usage.export import verify_export
from tests.fixtures.acting_tenancy import ActingTenancy
from tests.tenancy.manual_clock import ManualClock

ACCOUNT, OTHER = AccountId("a" * 32), AccountId("b" * 32)
TOKEN = ApiTokenId("1" * 32)
MODEL = ModelName("@hearth/tiny-chat")
DAY = 19_675
"""14 November 2023, when the tests' clock begins."""
START_MS = DAY * MS_PER_DAY
HOUR = DAY * 24
LEASE_MS = 60_000
OWNER = "gateway-1-boot"


def record(number: int, unix_ms: int = START_MS, **changes: Any) -> UsageRecord:
    """The record of a request that cost 7 nano-units and 5 micro-neurons."""
    plain = UsageRecord(
        create_id(unix_ms, number),
        ACCOUNT,
        TOKEN,
        MODEL,
        NodeId("node-1"),
        RegionId("weur"),
        GatewayId("gateway-1"),
        unix_ms + 1500,
        Outcome.COMPLETE,
        TokenCounts(1, 2, 3, 4),
        1,
        7,
        5,
    )
    return msgspec.structs.replace(plain, **changes)


def place(node_id: str, region: str) -> NodePlace:
    """A node in a region."""
    return NodePlace(NodeId(node_id), RegionId(region))


def spend(model: ModelName | None = None, token: ApiTokenId | None = None) -> BudgetKey:
    """The month's budget of money."""
    return BudgetKey(QuotaScope(ACCOUNT, token, model), BudgetKind.SPEND, (2023 - 1970) * 12 + 10)


NEURONS = BudgetKey(QuotaScope(ACCOUNT), BudgetKind.NEURONS, DAY)


async def test_records_come_back_as_they_were(tenancy: ActingTenancy) -> None:
    records = [
        record(1),
        record(2, outcome=Outcome.ABORTED, node_id=None, region=None, price_version=None),
        record(3, tokens=TokenCounts(0, 0, 0, 0), cost_nano=0, num_microneurons=0),
    ]
    assert await tenancy.append_usage(records, OWNER) == 3
    assert await tenancy.list_usage_records(ACCOUNT, DAY) == records


async def test_where_else_a_request_was_computed_comes_back_in_order_and_unknown_stays_unknown(
    tenancy: ActingTenancy,
) -> None:
    home, abroad = place("node-1", "weur"), place("node-2", "enam")
    records = [
        record(1, earlier_places=()),
        record(2, earlier_places=(abroad, home)),
        record(3, earlier_places=None),
    ]
    assert await tenancy.append_usage(records, OWNER) == 3
    assert await tenancy.list_usage_records(ACCOUNT, DAY) == records


async def test_exports_say_where_else_a_request_was_computed_and_verify(
    tenancy: ActingTenancy,
) -> None:
    both = (place("node-1", "weur"), place("node-2", "enam"))
    records = [record(1, earlier_places=()), record(2, earlier_places=both), record(3)]
    await tenancy.append_usage(records, OWNER)
    days = range(DAY, DAY + 1)
    lines = [
        line
        async for piece in tenancy.export_usage(ACCOUNT, days, ExportForm.JSONL)
        for line in piece.splitlines(keepends=True)
    ]
    seal = msgspec.json.decode(lines[-1])
    assert verify_export(lines, seal["public_key"])[1] == 3
    assert [msgspec.json.decode(line)["earlier_places"] for line in lines[1:-1]] == [
        [],
        [{"node_id": "node-1", "region": "weur"}, {"node_id": "node-2", "region": "enam"}],
        None,
    ]
    hidden = [line.replace(b"weur", b"enam") for line in lines]
    with pytest.raises(InvalidRequest):  # the control: it is signed like the rest
        verify_export(hidden, seal["public_key"])
    table = b"".join([one async for one in tenancy.export_usage(ACCOUNT, days, ExportForm.CSV)])
    rows = list(csv.DictReader(io.StringIO(table.decode())))
    told = [row["earlier_places"] for row in rows]
    assert told == ["", "node-1@weur node-2@enam", "unknown"]
    assert table.decode().splitlines()[0].endswith(",num_reasoning,earlier_places")


async def test_adding_again_changes_nothing(tenancy: ActingTenancy) -> None:
    await tenancy.append_usage([record(1), record(2)], OWNER)
    assert await tenancy.append_usage([record(2), record(3), record(3)], OWNER) == 1
    await tenancy.roll_up_usage()
    assert await tenancy.append_usage([record(1), record(3)], "another") == 0
    await tenancy.roll_up_usage()
    assert len(await tenancy.list_usage_records(ACCOUNT, DAY)) == 3
    (total,) = await tenancy.list_usage(ACCOUNT, Step.DAY, DAY, DAY + 1)
    assert (total.num_requests, total.cost_nano, total.num_microneurons) == (3, 21, 15)
    assert total.tokens == TokenCounts(3, 6, 9, 12)
    assert await tenancy.read_budget(spend()) == 21


async def test_known_and_new_records_in_one_batch_take_the_new_ones_from_the_slice_once(
    tenancy: ActingTenancy,
) -> None:
    await tenancy.append_usage([record(number) for number in range(0, 500, 2)], OWNER)
    assert await tenancy.lease_budget(spend(), OWNER, 10_000, 8_000, LEASE_MS) == 8_000
    batch = [record(number) for number in range(500)]
    assert await tenancy.append_usage([*batch, record(3)], OWNER) == 250
    assert await tenancy.read_budget(spend()) == 500 * 7
    left = 10_000 - 500 * 7 - (8_000 - 250 * 7)
    assert await tenancy.lease_budget(spend(), "another", 10_000, 10_000, LEASE_MS) == left


async def test_gateways_that_add_the_same_records_at_once_add_them_once_and_all_succeed(
    tenancy: ActingTenancy,
) -> None:
    records = [record(number) for number in range(500)]
    added = await asyncio.gather(
        tenancy.append_usage(records, "gateway-1-boot"),
        tenancy.append_usage(records[::-1], "gateway-2-boot"),
        tenancy.append_usage(records[250:], "gateway-3-boot"),
    )
    assert sum(added) == 500
    assert await tenancy.read_budget(spend()) == 500 * 7


async def test_an_empty_batch_is_no_work(tenancy: ActingTenancy) -> None:
    assert await tenancy.append_usage([], OWNER) == 0
    assert await tenancy.roll_up_usage() == 0


async def test_pages_of_records_follow_each_other(tenancy: ActingTenancy) -> None:
    records = [record(number) for number in range(5)]
    await tenancy.append_usage(records, OWNER)
    await tenancy.append_usage([record(9, account_id=OTHER), record(8, START_MS - 1)], OWNER)
    first = await tenancy.list_usage_records(ACCOUNT, DAY, limit=3)
    rest = await tenancy.list_usage_records(ACCOUNT, DAY, limit=3, after=first[-1].request_id)
    assert first + rest == records
    for limit in (0, 1001):
        with pytest.raises(InvalidRequest):
            await tenancy.list_usage_records(ACCOUNT, DAY, limit=limit)


async def test_sums_are_kept_by_hour_and_by_day_in_pages(tenancy: ActingTenancy) -> None:
    hour_ms = 3_600_000
    second = ModelName("@hearth/other")
    for number, (unix_ms, model) in enumerate(
        [
            (START_MS, MODEL),
            (START_MS + hour_ms - 1, MODEL),
            (START_MS + hour_ms, MODEL),
            (START_MS + hour_ms, second),
            (START_MS + MS_PER_DAY, MODEL),
        ]
    ):
        await tenancy.append_usage([record(number, unix_ms, model=model)], OWNER)
        if number % 2:
            await tenancy.roll_up_usage()
    await tenancy.roll_up_usage()
    hours = await tenancy.list_usage(ACCOUNT, Step.HOUR, HOUR, HOUR + 48)
    assert [(t.period - HOUR, t.model, t.num_requests) for t in hours] == [
        (0, MODEL, 2),
        (1, second, 1),
        (1, MODEL, 1),
        (24, MODEL, 1),
    ]
    days = await tenancy.list_usage(ACCOUNT, Step.DAY, DAY, DAY + 2)
    assert [(t.period - DAY, t.model, t.num_requests) for t in days] == [
        (0, second, 1),
        (0, MODEL, 3),
        (1, MODEL, 1),
    ]
    paged: list[Any] = []
    after = None
    while page := await tenancy.list_usage(
        ACCOUNT, Step.HOUR, HOUR, HOUR + 48, limit=1, after=after
    ):
        paged += page
        after = UsageCursor(page[-1].period, page[-1].model, page[-1].api_token_id)
    assert paged == hours
    assert await tenancy.list_usage(ACCOUNT, Step.HOUR, HOUR + 1, HOUR + 2) == hours[1:3]
    assert await tenancy.list_usage(OTHER, Step.DAY, DAY, DAY + 2) == []


async def test_months_leave_the_ledger_and_the_sums_stay(tenancy: ActingTenancy) -> None:
    october = record(1, START_MS - 20 * MS_PER_DAY)
    november = record(2)
    await tenancy.append_usage([october, november], OWNER)
    await tenancy.roll_up_usage()
    assert await tenancy.drop_usage_before(DAY) == DAY - 13
    assert await tenancy.list_usage_records(ACCOUNT, DAY - 20) == []
    assert await tenancy.list_usage_records(ACCOUNT, DAY) == [november]
    assert len(await tenancy.list_usage(ACCOUNT, Step.DAY, DAY - 30, DAY + 1)) == 2
    assert await tenancy.append_usage([record(3, START_MS - 20 * MS_PER_DAY)], OWNER) == 1


async def test_others_write_while_many_records_leave(
    tenancy: ActingTenancy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite has one writer at a time; who drops rows lets others in between."""
    october = START_MS - 20 * MS_PER_DAY
    monkeypatch.setattr(retention, "DROPPED_AT_ONCE", 2)
    await tenancy.append_usage([record(number, october) for number in range(1000)], OWNER)
    dropping = asyncio.create_task(tenancy.drop_usage_before(DAY))
    while await tenancy.list_usage_records(ACCOUNT, DAY - 20, limit=1) == [record(0, october)]:
        pass  # it has not begun
    assert await tenancy.append_usage([record(1)], OWNER) == 1
    is_between = not dropping.done()
    await dropping
    assert is_between or tenancy.directory._database.is_postgresql
    assert await tenancy.list_usage_records(ACCOUNT, DAY - 20) == []
    assert await tenancy.list_usage_records(ACCOUNT, DAY) == [record(1)]


async def test_who_had_usage_dropped_is_written_down(tenancy: ActingTenancy) -> None:
    await tenancy.append_usage([record(1)], OWNER)
    acting = tenancy.act_as(Actor(ActorKind.API_TOKEN, "a" * 32, ACCOUNT))
    with pytest.raises(Forbidden):
        await acting.administration.drop_usage_before(DAY)
    with pytest.raises(InvalidRequest, match="not come yet"):
        await tenancy.drop_usage_before(DAY + 1)
    assert await tenancy.drop_usage_before(DAY) == DAY - 13  # the month that runs stays whole
    assert await tenancy.list_usage_records(ACCOUNT, DAY) == [record(1)]
    (entry,) = await tenancy.list_audit_entries(AuditFilter())
    assert (entry.action, entry.details) == ("usage.drop", '{"before":"2023-11-01"}')


async def test_budgets_count_what_is_rolled_up_and_what_is_not(tenancy: ActingTenancy) -> None:
    other_token, other_model = ApiTokenId("2" * 32), ModelName("@hearth/other")
    await tenancy.append_usage([record(1), record(2, api_token_id=other_token)], OWNER)
    await tenancy.roll_up_usage()
    await tenancy.append_usage([record(3, model=other_model), record(4, account_id=OTHER)], OWNER)
    earlier = record(5, START_MS - MS_PER_DAY)  # yesterday, the same month
    before = record(6, START_MS - 20 * MS_PER_DAY)  # the month before
    await tenancy.append_usage([earlier, before], OWNER)
    assert await tenancy.read_budget(spend()) == 4 * 7
    assert await tenancy.read_budget(spend(token=TOKEN)) == 3 * 7
    assert await tenancy.read_budget(spend(MODEL)) == 3 * 7
    assert await tenancy.read_budget(spend(other_model, TOKEN)) == 7
    assert await tenancy.read_budget(NEURONS) == 3 * 5


async def test_slices_and_ledger_together_never_exceed_the_limit(tenancy: ActingTenancy) -> None:
    await tenancy.append_usage([record(1)], OWNER)
    assert await tenancy.lease_budget(spend(), OWNER, 100, 40, LEASE_MS) == 40
    assert await tenancy.lease_budget(spend(), "second", 100, 40, LEASE_MS) == 40
    assert await tenancy.lease_budget(spend(), "second", 100, 40, LEASE_MS) == 13
    assert await tenancy.lease_budget(spend(), OWNER, 100, 1, LEASE_MS) == 0
    assert await tenancy.lease_budget(spend(), OWNER, 101, 5, LEASE_MS) == 1
    assert await tenancy.lease_budget(NEURONS, OWNER, 100, 500, LEASE_MS) == 95


async def test_many_who_ask_at_once_get_no_more_than_there_is(tenancy: ActingTenancy) -> None:
    await tenancy.append_usage([record(1)], OWNER)
    asked = (
        tenancy.lease_budget(spend(), f"gateway-{number % 3}", 107, 10, LEASE_MS)
        for number in range(30)
    )
    assert sum(await asyncio.gather(*asked)) == 100


async def test_what_is_spent_of_a_slice_counts_once(tenancy: ActingTenancy) -> None:
    assert await tenancy.lease_budget(spend(), OWNER, 100, 50, LEASE_MS) == 50
    await tenancy.append_usage([record(1), record(2, account_id=OTHER)], OWNER)
    assert await tenancy.lease_budget(spend(), "second", 100, 100, LEASE_MS) == 50
    await tenancy.append_usage([record(3)], "second")
    await tenancy.release_budget(spend(), OWNER)
    await tenancy.drop_budgets("second")
    assert await tenancy.lease_budget(spend(), "third", 100, 1000, LEASE_MS) == 100 - 2 * 7


async def test_a_record_beyond_its_slice_still_counts(tenancy: ActingTenancy) -> None:
    assert await tenancy.lease_budget(spend(), OWNER, 100, 5, LEASE_MS) == 5
    await tenancy.append_usage([record(1)], OWNER)
    assert await tenancy.lease_budget(spend(), "second", 100, 1000, LEASE_MS) == 93


async def test_a_slice_that_is_not_renewed_goes_back(
    tenancy: ActingTenancy, clock: ManualClock
) -> None:
    await tenancy.lease_budget(spend(), OWNER, 100, 100, LEASE_MS)
    clock.advance(40)
    await tenancy.renew_budgets(OWNER, LEASE_MS)
    clock.advance(40)
    assert await tenancy.lease_budget(spend(), "second", 100, 1, LEASE_MS) == 0
    clock.advance(40)
    await tenancy.renew_budgets(OWNER, LEASE_MS)  # too late: it stays lost
    assert await tenancy.lease_budget(spend(), "second", 100, 60, LEASE_MS) == 60
    assert await tenancy.lease_budget(spend(), OWNER, 100, 100, LEASE_MS) == 40
