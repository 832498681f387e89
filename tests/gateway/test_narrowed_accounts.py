"""An account that is narrowed or suspended while its requests are under way: what is there goes on,
and no further place is taken but where the rules allow it by then.
"""

import asyncio
from pathlib import Path

import pytest

from contracts.errors import StreamBroken
from contracts.ids import RegionId
from contracts.inference import Accepted, Delta
from tenancy.changes import AccountChange
from tenancy.interfaces import AccountStatus
from tests.gateway.raw_http import connect
from tests.gateway.running_gateway import (
    RunningGateway,
    Tenant,
    run_gateway,
    to_bytes,
    wait_until,
    wait_until_async,
)
from tests.gateway.scripted_node import MODEL, ScriptedStream, run_node
from tests.gateway.test_continuation import STREAM, are_known, go_on, read_text
from tests.gateway.turnstiles import NUM_PLACES, open_site

HOME = RegionId("weur")
RENAMED = AccountChange(name="another")
"""The control: something has changed in the store, and nothing of where requests may go."""
NARROWED = AccountChange(allowed_regions=(HOME,))
SUSPENDED = AccountChange(status=AccountStatus.SUSPENDED)


async def change(gateway: RunningGateway, tenant: Tenant, what: AccountChange) -> None:
    """Returns once the gateway has seen that something has changed."""
    cache = gateway.gateway._cache  # type: ignore[reportPrivateUsage]
    before = cache.generation
    await gateway.tenancy.change_account(tenant.account_id, what)
    await wait_until(lambda: cache.generation != before)


@pytest.mark.parametrize("what", [RENAMED, NARROWED, SUSPENDED])
@pytest.mark.parametrize("has_begun", [True, False])
async def test_what_is_lost_goes_on_only_where_the_rules_allow_it_by_then(
    tmp_path: Path, database_template: Path, what: AccountChange, has_begun: bool
) -> None:
    is_changed = asyncio.Event()

    async def begin_and_fail(stream: ScriptedStream) -> None:
        if has_begun:
            await stream.put(Accepted(7, 0))
            await stream.put(Delta("Hal", (11, 12, 13)))
        await is_changed.wait()
        await stream.fail(StreamBroken("The engine died."))

    routing = {"resume_patience_s": 0.3}
    async with run_node("node-1", HOME) as home, run_node("node-2", "enam") as abroad:
        home.script, abroad.script = begin_and_fail, go_on
        nodes = [home, abroad]
        async with run_gateway(tmp_path, database_template, nodes, routing=routing) as gateway:
            await wait_until_async(lambda: are_known(gateway, 2))
            running = asyncio.create_task(gateway.run(STREAM))
            await wait_until(lambda: bool(home.streams))
            await change(gateway, gateway.tenant, what)
            is_changed.set()
            reply = await running
            if what is RENAMED:
                assert read_text(reply) == ("Hallo" if has_begun else "lo")
                assert len(abroad.streams) == 1
                return
            assert abroad.streams == []
            assert reply.status == (200 if has_begun else 502 if what is NARROWED else 403)
            assert b"[DONE]" not in reply.body
            assert {one.grant.regions for one in home.streams[1:]} <= {(HOME,)}


async def test_who_waits_is_served_only_where_the_rules_allow_it_by_then(
    tmp_path: Path, database_template: Path
) -> None:
    async with open_site(tmp_path, database_template, HOME, "enam") as site:
        near, far = site.turnstiles
        narrowed, other = await site.gateway.add_tenant(), await site.gateway.add_tenant()
        suspended = await site.gateway.add_tenant()
        await site.fill()
        bound, refused = site.ask(narrowed), site.ask(suspended)
        free = site.ask(other)
        await site.wait_for(3)
        await change(site.gateway, narrowed, NARROWED)
        await change(site.gateway, suspended, SUSPENDED)
        far.let_through(NUM_PLACES + 3)
        assert (await free).headers["x-hearth-region"] == "enam"  # the control
        reply = await refused
        assert (reply.status, b"suspended" in reply.body) == (403, True)
        await site.wait_for(1)
        assert not bound.done()
        near.let_through(NUM_PLACES + 1)
        assert (await bound).headers["x-hearth-region"] == HOME
        served = [stream.grant for one in site.turnstiles for stream in one.served]
        regions = {grant.account_id: grant.regions for grant in served}
        assert (regions[narrowed.account_id], regions[other.account_id]) == ((HOME,), None)
        assert suspended.account_id not in regions


@pytest.mark.parametrize("what", [RENAMED, NARROWED])
async def test_a_body_that_comes_slowly_goes_where_the_rules_allow_it_by_then(
    tmp_path: Path, database_template: Path, what: AccountChange
) -> None:
    body = to_bytes({"prompt": "Hi"})
    async with (
        run_node("node-1", "enam") as node,
        run_gateway(tmp_path, database_template, [node]) as gateway,
    ):
        head = (
            f"POST {gateway.account_path(f'/ai/run/{MODEL}')} HTTP/1.1\r\nhost: x\r\n"
            f"authorization: Bearer {gateway.tenant.api_token}\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        async with connect(gateway) as (reader, writer):
            writer.write(head.encode() + body[:3])
            await asyncio.sleep(0.1)
            await change(gateway, gateway.tenant, what)
            writer.write(body[3:])
            status = (await asyncio.wait_for(reader.readline(), 20)).split()[1]
        assert (status, len(node.streams)) == ((b"200", 1) if what is RENAMED else (b"403", 0))
