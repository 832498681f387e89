"""An account's usage over both ports: its own, exact, page by page."""

from typing import Any

import msgspec
import pytest

from contracts.errors import InvalidRequest
from contracts.ids import AccountId, ApiTokenId, GatewayId, create_request_id
from contracts.pricing import TokenCounts
from contracts.usage import Outcome, UsageRecord
from tenancy.permissions import Permission
from tenancy.usage.export import verify_export
from tests.gateway.running_gateway import RunningGateway, Tenant, wait_until_async
from tests.gateway.scripted_node import MODEL

HOUR_MS = 3_600_000
NOON_MS = 20_000 * 24 * HOUR_MS + 12 * HOUR_MS  # 2024-10-04T12:00:00Z


async def spend(gateway: RunningGateway, account_id: AccountId, hours: int) -> None:
    """One request an hour, from noon on."""
    records = [
        UsageRecord(
            create_request_id(NOON_MS + hour * HOUR_MS, hour),
            account_id,
            ApiTokenId("b" * 32),
            MODEL,
            None,
            None,
            GatewayId("g"),
            NOON_MS + hour * HOUR_MS,
            Outcome.COMPLETE,
            TokenCounts(10, 1, 5, 2),
            1,
            7,
            3,
        )
        for hour in range(hours)
    ]
    await gateway.tenancy.append_usage(records, "tests")
    while await gateway.tenancy.roll_up_usage():
        pass


async def read(gateway: RunningGateway, tenant: Tenant, query: str = "") -> list[Any]:
    """All totals that the tenant is shown, page by page."""
    rows: list[Any] = []
    cursor = ""
    while True:
        path = gateway.account_path(f"/usage?{query}&cursor={cursor}", tenant)
        reply = await gateway.send("GET", path, api_token=tenant.api_token)
        assert reply.status == 200, reply.body
        rows += reply.json["result"]
        cursor = reply.json["result_info"]["cursor"]
        if not cursor:
            return rows


async def test_an_account_reads_its_own_sums(gateway: RunningGateway) -> None:
    mine = await gateway.add_tenant(permissions=frozenset({Permission.BILLING_READ}))
    other = await gateway.add_tenant(permissions=frozenset({Permission.BILLING_READ}))
    await spend(gateway, mine.account_id, 5)

    async def is_summed_up() -> bool:
        return sum(row["requests"] for row in await read(gateway, mine)) == 5

    await wait_until_async(is_summed_up)
    (day,) = await read(gateway, mine)
    assert day["since"] == "2024-10-04T00:00:00Z"
    assert (day["cost_nano"], day["microneurons"]) == (35, 15)
    assert day["tokens"] == {
        "num_uncached": 50,
        "num_cached": 5,
        "num_output": 25,
        "num_reasoning": 10,
    }
    hours = await read(gateway, mine, "step=hour&limit=2")
    assert [row["since"][11:13] for row in hours] == ["12", "13", "14", "15", "16"]
    some = "step=hour&since=2024-10-04T13:00:00Z&before=2024-10-04T15:00:00Z"
    assert [row["since"][11:13] for row in await read(gateway, mine, some)] == ["13", "14"]
    assert await read(gateway, other) == []
    operators = await gateway.send(
        "GET",
        f"/operator/v1/accounts/{mine.account_id}/usage",
        api_token=gateway.operator,
        origin=gateway.admin,
    )
    assert operators.json["result"] == [day]


async def test_an_account_takes_its_own_signed_ledger_away(gateway: RunningGateway) -> None:
    mine = await gateway.add_tenant(permissions=frozenset({Permission.BILLING_READ}))
    other = await gateway.add_tenant(permissions=frozenset({Permission.BILLING_READ}))
    weak = await gateway.add_tenant(permissions=frozenset({Permission.WORKERS_AI_WRITE}))
    await spend(gateway, mine.account_id, 3)
    await spend(gateway, other.account_id, 2)
    path = gateway.account_path("/usage/export?since=2024-10-04&before=2024-10-05", mine)
    reply = await gateway.send("GET", path, api_token=mine.api_token)
    assert reply.status == 200
    lines = reply.body.splitlines(keepends=True)
    seal = msgspec.json.decode(lines[-1])
    header, num_records = verify_export(lines, seal["public_key"])
    assert (header.account_id, num_records) == (mine.account_id, 3)
    harmed = [line.replace(b'"cost_nano":7', b'"cost_nano":6') for line in lines]
    with pytest.raises(InvalidRequest):  # the control: not whatever the file says is believed
        verify_export(harmed, seal["public_key"])
    table = await gateway.send("GET", f"{path}&format=csv", api_token=mine.api_token)
    rows = table.body.decode().splitlines()
    assert len(rows) == 1 + 3
    assert other.account_id not in table.body.decode() + reply.body.decode()
    assert (await gateway.send("GET", path, api_token=other.api_token)).status == 403
    own = gateway.account_path("/usage/export?since=2024-10-04&before=2024-10-05", weak)
    assert (await gateway.send("GET", own, api_token=weak.api_token)).status == 403


@pytest.mark.parametrize(
    "query",
    [
        "since=2024-10-04",
        "since=2024-10-05&before=2024-10-05",
        "since=2024-01-01&before=2025-01-02",
        "since=2024-10-04&before=2024-10-05&format=xls",
    ],
)
async def test_an_export_without_bounds_or_in_no_form_is_400(
    gateway: RunningGateway, query: str
) -> None:
    mine = await gateway.add_tenant(permissions=frozenset({Permission.BILLING_READ}))
    path = gateway.account_path(f"/usage/export?{query}", mine)
    reply = await gateway.send("GET", path, api_token=mine.api_token)
    assert (reply.status, reply.code) == (400, 5006)


@pytest.mark.parametrize(
    "query", ["step=week", "since=x", "cursor=x", "cursor=e30=", "limit=0", "model=@a/b"]
)
async def test_a_query_that_makes_no_sense_is_400(gateway: RunningGateway, query: str) -> None:
    mine = await gateway.add_tenant(permissions=frozenset({Permission.BILLING_READ}))
    path = gateway.account_path(f"/usage?{query}", mine)
    reply = await gateway.send("GET", path, api_token=mine.api_token)
    assert (reply.status, reply.code) == (400, 5006)
