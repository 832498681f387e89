"""Items of batches while the database is away, or what it was told is not known to have come."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from contracts.errors import PoolSaturated, StoreUnavailable
from contracts.ids import ApiTokenId, GatewayId, create_request_id
from contracts.pricing import TokenCounts
from contracts.usage import MS_PER_DAY, Outcome, UsageRecord
from tests.gateway.batch_client import hand_in, run_batch, wait_for_answers
from tests.gateway.running_gateway import RunningGateway, run_gateway, wait_until, wait_until_async
from tests.gateway.scripted_node import MODEL, ScriptedNode, ScriptedStream
from tests.gateway.test_money import list_records, set_limits

HI = {"prompt": "Hi"}


async def test_an_answer_outlasts_a_store_that_is_away_and_is_made_once(
    gateway: RunningGateway, node: ScriptedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = gateway.gateway._batches._store
    finish, num_tries = store.finish_batch_item, 0

    async def fail_often(*arguments: Any) -> bool:
        nonlocal num_tries
        num_tries += 1
        if num_tries < 7:
            raise StoreUnavailable("The test's doing.")
        return await finish(*arguments)

    monkeypatch.setattr(store, "finish_batch_item", fail_often)
    (answer,) = await run_batch(gateway, HI)
    assert answer["success"]
    assert num_tries == 7
    assert len(node.streams) == 1


async def test_an_answer_that_was_billed_and_lost_is_billed_once_though_it_finds_no_room_then(
    gateway: RunningGateway, node: ScriptedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway ends between journal and store, and the node is full when the next one runs it
    again: twice, and over the same connection.
    """
    store = gateway.gateway._batches._store
    finish, num_told = store.finish_batch_item, 0

    async def lose_once(item: Any, owner: str, output: bytes) -> bool:
        nonlocal num_told
        num_told += 1
        if num_told > 1:
            return await finish(item, owner, output)
        await store.release_batch_items(owner)  # as the next start does
        return True

    async def answer(stream: ScriptedStream) -> None:
        if len(node.streams) in (2, 3):
            await stream.fail(PoolSaturated("The test's doing.", retry_after_s=0.1))
        else:
            await stream.answer("a")

    monkeypatch.setattr(store, "finish_batch_item", lose_once)
    node.script = answer
    (item,) = await run_batch(gateway, HI)
    assert item["success"]
    assert len(node.streams) == 4
    assert len(await list_records(gateway)) == 1


async def test_what_was_lost_yesterday_draws_on_todays_budget_and_is_billed_then(
    gateway: RunningGateway, node: ScriptedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its request id is yesterday's, of whose budget nothing is left."""
    store = gateway.gateway._batches._store
    claim = store.claim_batch_items
    yesterday_ms = int(time.time() * 1000) - MS_PER_DAY
    lost_id = create_request_id(yesterday_ms, 1)

    async def claim_lost(*arguments: Any, **options: Any) -> list[Any]:
        items = await claim(*arguments, **options)
        return [replace(item, request_id=lost_id, num_lost=1) for item in items]

    await set_limits(gateway, neurons_per_day=1000)
    spent = UsageRecord(
        create_request_id(yesterday_ms, 2),
        gateway.tenant.account_id,
        ApiTokenId("1" * 32),
        MODEL,
        None,
        None,
        GatewayId("gateway-1"),
        yesterday_ms,
        Outcome.COMPLETE,
        TokenCounts(1, 0, 1, 0),
        1,
        1,
        10**10,
    )
    assert await gateway.tenancy.append_usage([spent], "tests") == 1
    monkeypatch.setattr(store, "claim_batch_items", claim_lost)
    (item,) = await run_batch(gateway, HI)
    assert item["success"], item
    await list_records(gateway)  # when it is empty, the ledger has all
    records = await gateway.tenancy.list_usage_records(
        gateway.tenant.account_id, yesterday_ms // MS_PER_DAY, limit=10
    )
    assert {record.request_id for record in records} == {spent.request_id, lost_id}


async def test_a_claim_whose_word_is_lost_is_over_with_its_lease(
    tmp_path: Path,
    database_template: Path,
    node: ScriptedNode,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The store has given the item away when the connection to it breaks."""
    batches = {"poll_s": 0.05, "lease_s": 1.0}
    async with run_gateway(tmp_path, database_template, [node], batches=batches) as gateway:
        store = gateway.gateway._batches._store
        claim, lost = store.claim_batch_items, []

        async def lose_word(*arguments: Any, **options: Any) -> list[Any]:
            items = await claim(*arguments, **options)
            if items and not lost:
                lost.extend(items)
                raise StoreUnavailable("The test's doing.")
            return items

        monkeypatch.setattr(store, "claim_batch_items", lose_word)
        (answer,) = await run_batch(gateway, HI)
        assert answer["success"]
        assert len(lost) == 1


async def test_what_is_claimed_while_the_gateway_stops_is_given_back(
    gateway: RunningGateway, node: ScriptedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = gateway.gateway._batches
    store = runner._store
    claim, claimed, go_on = store.claim_batch_items, asyncio.Event(), asyncio.Event()

    async def claim_slowly(*arguments: Any, **options: Any) -> list[Any]:
        items = await claim(*arguments, **options)
        if items:
            claimed.set()
            await go_on.wait()
        return items

    async def is_free() -> bool:
        return len(await claim("another", 1, 1000)) == 1

    monkeypatch.setattr(store, "claim_batch_items", claim_slowly)
    await hand_in(gateway, HI)
    await claimed.wait()
    await runner.stop()
    go_on.set()
    await wait_until_async(is_free)
    assert node.streams == []


async def test_a_put_back_whose_word_is_lost_lets_nothing_run_twice(
    tmp_path: Path,
    database_template: Path,
    node: ScriptedNode,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The store takes it and is away then; it is told again while another run goes on."""
    may_end = asyncio.Event()

    async def answer(stream: ScriptedStream) -> None:
        if len(node.streams) == 1:
            await stream.fail(PoolSaturated("The test's doing."))
            return
        await may_end.wait()
        await stream.answer("a")

    node.script = answer
    batches = {"poll_s": 0.05}
    async with run_gateway(tmp_path, database_template, [node], batches=batches) as gateway:
        store = gateway.gateway._batches._store
        put_back, num_told = store.put_back_batch_item, 0

        async def lose_word(*arguments: Any, **options: Any) -> None:
            nonlocal num_told
            await put_back(*arguments, **options)
            num_told += 1
            if num_told == 1:
                await wait_until(lambda: len(node.streams) == 2)
                raise StoreUnavailable("The test's doing.")

        monkeypatch.setattr(store, "put_back_batch_item", lose_word)
        reply = await hand_in(gateway, HI)
        await wait_until(lambda: num_told == 2)
        await asyncio.sleep(0.5)  # ten times what another claim would take
        may_end.set()
        (item,) = (await wait_for_answers(gateway, reply.json["result"]["request_id"]))["responses"]
        assert item["success"]
        assert len(node.streams) == 2
        assert len(await list_records(gateway)) == 1
