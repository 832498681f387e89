"""An account that is narrowed or suspended while its requests are under way: what is there goes on,
and no further place is taken but where the rules allow it by then.
"""

import asyncio
from pathlib import Path

import pytest

from contracts.batches import BatchBounds, NewBatch
from contracts.errors import StreamBroken, TransferFailed
from contracts.ids import RegionId, create_request_id
from contracts.inference import Accepted, Delta
from gateway.batches.item_forms import ItemInput, encode_item
from tenancy.changes import AccountChange
from tenancy.interfaces import AccountStatus
from tests.gateway.batch_client import run_batch, wait_for_answers
from tests.gateway.prompt_pair import WHOLE, run_pair
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
async def test_the_prompt_of_who_waited_is_computed_only_where_the_rules_allow_it_by_then(
    tmp_path: Path, database_template: Path, what: AccountChange
) -> None:
    async with run_pair(tmp_path, database_template) as pair:
        gateway, answers, abroad = pair.gateway, pair.answers, pair.others
        queue = gateway.gateway._pool.forwarding.queue  # type: ignore[reportPrivateUsage]
        queue.sweep = lambda: None  # which gives answers to nodes for prompts where others are full
        for node in (answers, abroad, pair.prompts):
            node.num_waiting = 1000
            await node.send_report()
        running = asyncio.create_task(gateway.run(STREAM | WHOLE))
        await wait_until(lambda: queue.num_waiting == 1)
        await change(gateway, gateway.tenant, what)
        for node in (abroad, answers):
            node.num_waiting = 0
            await node.send_report()
            await asyncio.sleep(0.1)
        is_elsewhere = what is RENAMED
        assert read_text(await running) == ("Hello" if is_elsewhere else "local")
        assert len(abroad.streams) == is_elsewhere


@pytest.mark.parametrize("is_narrowed", [False, True])
async def test_a_prompt_that_was_given_up_goes_on_only_where_the_rules_allow_it_by_then(
    tmp_path: Path, database_template: Path, is_narrowed: bool
) -> None:
    is_changed = asyncio.Event()

    async def give_up(stream: ScriptedStream) -> None:
        await is_changed.wait()
        await stream.fail(TransferFailed("No room after all."))

    async with run_pair(tmp_path, database_template) as pair:
        pair.prompts.script = give_up
        running = asyncio.create_task(pair.gateway.run(STREAM | WHOLE))
        await wait_until(lambda: bool(pair.prompts.streams))
        if is_narrowed:
            await change(pair.gateway, pair.gateway.tenant, NARROWED)
        is_changed.set()
        assert read_text(await running) == ("local" if is_narrowed else "Hello")
        assert len(pair.others.streams) == (not is_narrowed)


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


@pytest.mark.parametrize("is_strict", [True, False])
async def test_a_gateway_runs_no_item_of_an_account_whose_requests_may_not_enter_there(
    tmp_path: Path, database_template: Path, is_strict: bool
) -> None:
    options = {"region": HOME, "routing": {"strict_entry": is_strict}}
    async with (
        run_node("node-1", "enam") as node,
        run_gateway(tmp_path, database_template, [node], **options) as gateway,
    ):
        await wait_until_async(lambda: are_known(gateway, 1))
        bound = await gateway.add_tenant(regions=["enam"])
        (token,) = await gateway.tenancy.list_api_tokens(bound.account_id)
        batch = NewBatch(  # another gateway has taken it in
            batch_id=create_request_id(1, 1),
            account_id=bound.account_id,
            api_token_id=token.api_token_id,
            model=MODEL,
            items=(encode_item(ItemInput(b'{"prompt": "Hi"}', None)),),
            due_unix_ms=2**50,
            expires_unix_ms=2**50,
        )
        await gateway.tenancy.create_batch(batch, BatchBounds(max_batches=1, max_bytes=1000))
        if is_strict:
            for _ in range(3):  # others' items run, one after the other
                await run_batch(gateway, {"prompt": "Hi"})
            accounts = {stream.grant.account_id for stream in node.streams}
            assert accounts == {gateway.tenant.account_id}
            both = AccountChange(allowed_regions=(HOME, RegionId("enam")))
            await change(gateway, bound, both)
        await wait_for_answers(gateway, batch.batch_id, bound)
        assert bound.account_id in {stream.grant.account_id for stream in node.streams}
