"""`last_used_on`: which tokens got in is written once a minute and at the end, and shown."""

import shutil
import time
from pathlib import Path

import pytest

from gateway.auth import token_uses
from tenancy.interfaces import ApiToken
from tenancy.permissions import Permission
from tests.gateway.cloudflare_client import connect
from tests.gateway.running_gateway import RunningGateway, Tenant, run_gateway, wait_until_async
from tests.gateway.scripted_node import ScriptedNode


async def find_token(gateway: RunningGateway, tenant: Tenant) -> ApiToken:
    """The tenant's only token, as a second view of the database shows it."""
    (token,) = await gateway.tenancy.list_api_tokens(tenant.account_id)
    return token


async def test_a_gateway_that_stops_writes_who_got_in_and_nobody_else(
    tmp_path: Path, database_template: Path, node: ScriptedNode
) -> None:
    shutil.copyfile(database_template, tmp_path / "shared.db")
    url = f"sqlite+aiosqlite:///{tmp_path / 'shared.db'}"
    async with run_gateway(tmp_path, url, [node]) as first:
        used, refused, idle = [await first.add_tenant() for _ in range(3)]
        assert (await first.run({"prompt": "Hi"}, tenant=used)).status == 200
        path = first.account_path("/tokens", refused)
        # It is known, and has no right to this.
        assert (await first.send("GET", path, api_token=refused.api_token)).status == 403
        assert (await find_token(first, used)).last_used_unix_s is None
    async with run_gateway(tmp_path, url, [node]) as second:
        last = (await find_token(second, used)).last_used_unix_s
        assert last is not None
        assert abs(last - time.time()) < 600
        for tenant in (refused, idle):
            assert (await find_token(second, tenant)).last_used_unix_s is None


async def test_cloudflares_client_reads_when_a_token_was_last_used(
    gateway: RunningGateway,
) -> None:
    tenant = await gateway.add_tenant(permissions=frozenset(Permission))
    token = await find_token(gateway, tenant)
    where = f"/operator/v1/accounts/{tenant.account_id}/tokens/{token.api_token_id}"
    async with connect(gateway, tenant.api_token) as client:
        shown = await client.accounts.tokens.get(token.api_token_id, account_id=tenant.account_id)
        assert shown is not None
        assert shown.last_used_on is None  # this very request is not written down yet
        await gateway.tenancy.note_api_token_uses({token.api_token_id: 1_700_000_000})
        shown = await client.accounts.tokens.get(token.api_token_id, account_id=tenant.account_id)
        listed = [one async for one in client.user.tokens.list()]
    assert shown is not None
    assert shown.last_used_on is not None
    assert int(shown.last_used_on.timestamp()) == 1_700_000_000
    assert [one.last_used_on for one in listed] == [shown.last_used_on]
    reply = await gateway.send("GET", where, api_token=gateway.operator, origin=gateway.admin)
    assert reply.json["result"]["last_used_on"] == "2023-11-14T22:13:20Z"


async def test_a_running_gateway_writes_by_itself(
    tmp_path: Path,
    database_template: Path,
    node: ScriptedNode,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(token_uses, "WRITE_S", 0.05)
    async with run_gateway(tmp_path, database_template, [node]) as gateway:
        assert (await gateway.run({"prompt": "Hi"})).status == 200

        async def is_written() -> bool:
            return (await find_token(gateway, gateway.tenant)).last_used_unix_s is not None

        await wait_until_async(is_written)
