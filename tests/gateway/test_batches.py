"""Asynchronous batches through a whole gateway: handed in, run when there is room, asked about."""

import asyncio
from pathlib import Path

import pytest

from contracts.errors import ModelCold, PoolSaturated, StreamBroken
from contracts.grant import RetentionClass
from contracts.ids import create_request_id
from contracts.inference import Accepted
from gateway.batches.item_principal import PRIORITY
from tenancy.changes import AccountChange
from tenancy.interfaces import ApiTokenStatus
from tests.gateway.batch_client import ask_batch, hand_in, run_batch, wait_for_answers
from tests.gateway.running_gateway import RunningGateway, run_gateway, wait_until, wait_until_async
from tests.gateway.scripted_node import MODEL, ScriptedNode, ScriptedStream, run_node
from tests.gateway.scripted_talks import NUM_PROMPT, talk_to_the_end
from tests.gateway.test_kills import compute_cost, run_sqlite_process, wait_for_ledger
from tests.gateway.test_money import list_records, set_limits

HI = {"prompt": "Hi"}


def read_prompt(stream: ScriptedStream) -> str:
    """What an item asks, as its last message."""
    prompt = stream.request.prompt
    return str(prompt.messages[-1].content)  # type: ignore[union-attr]


async def test_answers_come_in_order_with_their_references_and_are_billed_once(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    async def echo(stream: ScriptedStream) -> None:
        await stream.answer(read_prompt(stream), "!")

    node.script = echo
    reply = await hand_in(
        gateway,
        {"prompt": "a", "external_reference": "first"},
        {"prompt": "b", "messages": [{"role": "user", "content": "b"}]},
        {"prompt": "c", "stream": True, "external_reference": None},
    )
    assert reply.status == 200
    queued = reply.json["result"]
    assert queued == {"status": "queued", "request_id": queued["request_id"], "model": MODEL}
    assert reply.headers["x-request-id"] == queued["request_id"]
    done = await wait_for_answers(gateway, queued["request_id"])
    first, bad, last = done["responses"]
    assert (first["id"], first["success"], first["external_reference"]) == (0, True, "first")
    assert first["result"]["response"] == "a!"
    assert first["result"]["usage"]["total_tokens"] == 9
    assert (bad["id"], bad["success"], bad["result"]) == (1, False, None)
    assert bad["error"]["code"] == 5006
    assert "Exactly one" in bad["error"]["message"]
    assert (last["result"]["response"], last["external_reference"]) == ("c!", None)
    assert done["usage"]["total_tokens"] == 18
    records = await list_records(gateway)
    assert [record.tokens.num_output for record in records] == [2, 2]
    assert all(record.cost_nano == compute_cost(2) for record in records)
    # Asked again, in any way, it is the same.
    for query in ("", "?queueRequest=true", "?tags=a&queueRequest=TRUE"):
        again = await ask_batch(gateway, {"request_id": queued["request_id"]}, query=query)
        assert again.json["result"] == done
    assert len(await list_records(gateway)) == 2


async def test_items_have_the_lowest_priority_and_do_not_wait_at_nodes(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    account_id = gateway.tenant.account_id
    await gateway.tenancy.change_account(account_id, AccountChange(priority=100))
    await run_batch(gateway, HI | {"options": {"rejectIfBusy": False}})
    (stream,) = node.streams
    assert stream.grant.priority == PRIORITY + 100 < -100
    assert stream.request.reject_if_busy
    assert not stream.request.stream
    await gateway.gateway._cache.poll_epoch()
    await gateway.run(HI)  # the control
    assert node.streams[-1].grant.priority == 100


async def test_an_item_that_finds_no_room_runs_later_and_a_sleeping_model_is_woken(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    async def refuse_once(stream: ScriptedStream) -> None:
        first = len(node.streams) == 1
        await (stream.fail(PoolSaturated("full")) if first else stream.answer("ok"))

    node.script = refuse_once
    (answer,) = await run_batch(gateway, HI)
    assert answer["success"]

    async def sleep(stream: ScriptedStream) -> None:
        if stream.request.reject_if_busy:
            await stream.fail(ModelCold("asleep"))
        else:
            await stream.answer("awake")

    node.script = sleep
    (answer,) = await run_batch(gateway, HI)
    assert answer["result"]["response"] == "awake"
    assert len(await list_records(gateway)) == 2


async def test_a_broken_run_is_not_recorded_and_is_made_again(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    async def break_off(stream: ScriptedStream) -> None:
        await stream.put(Accepted(NUM_PROMPT, 0))
        if len(node.streams) <= 2:  # the run itself tries twice
            await stream.fail(StreamBroken("gone"))
        else:
            await talk_to_the_end(stream)

    node.script = break_off
    (answer,) = await run_batch(gateway, HI | {"max_tokens": 3})
    assert answer["success"]
    (record,) = await list_records(gateway)
    assert record.cost_nano == compute_cost(2)


async def test_a_batch_is_its_accounts_own(gateway: RunningGateway) -> None:
    reply = await hand_in(gateway, HI)
    poll = {"request_id": reply.json["result"]["request_id"]}
    other = await gateway.add_tenant()
    of_other = await ask_batch(gateway, poll, tenant=other)
    nowhere = {"request_id": create_request_id(1, 1)}
    assert (of_other.status, of_other.json) == (404, (await ask_batch(gateway, nowhere)).json)
    assert (await ask_batch(gateway, poll, model="@hearth/tests/other")).status == 404
    assert (await ask_batch(gateway, poll)).status == 200


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (HI, "holds `requests`"),
        ({"requests": []}, "holds `requests`"),
        ({"requests": [HI] * 6}, "at most 5"),
        ({"requests": [HI, 1]}, "requests[1]"),
        ({"requests": [HI | {"external_reference": 1}]}, "requests[0]"),
        ({"requests": HI}, "requests"),
        ({"request_id": "1"}, "request_id"),
    ],
)
async def test_what_is_no_batch_is_refused_in_a_sentence(
    tmp_path: Path, database_template: Path, node: ScriptedNode, body: object, message: str
) -> None:
    async with run_gateway(
        tmp_path, database_template, [node], batches={"max_items": 5}
    ) as gateway:
        reply = await ask_batch(gateway, body)
        assert (reply.status, reply.code) == (400, 5006)
        assert message in reply.json["errors"][0]["message"]
        assert (await ask_batch(gateway, {"requests": [HI]})).status == 200  # the control
        plain = await ask_batch(gateway, {"requests": [HI]}, query="")
        assert (plain.status, plain.code) == (400, 7401)
        assert "queueRequest=true" in plain.json["errors"][0]["message"]


async def test_a_model_that_nobody_knows_or_may_use_takes_no_batch(gateway: RunningGateway) -> None:
    assert (await hand_in(gateway, HI, model="@hearth/tests/none")).code == 5007
    assert (await hand_in(gateway, HI, model="none")).code == 3042
    path = gateway.account_path("/ai/run?queueRequest=true")
    named = await gateway.send(
        "POST", path, b'{"model": "%b", "input": {"requests": [{"prompt": "a"}]}}' % MODEL.encode()
    )
    assert named.json["result"]["model"] == MODEL


async def test_nothing_is_kept_for_accounts_of_which_nothing_may_be(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    node.is_ready = False
    account_id = gateway.tenant.account_id
    node.script = lambda stream: stream.fail(PoolSaturated("full"))
    kept = await hand_in(gateway, HI)
    change = AccountChange(retention=RetentionClass.NONE)
    await gateway.tenancy.change_account(account_id, change)
    await gateway.gateway._cache.poll_epoch()
    refused = await hand_in(gateway, HI)
    assert (refused.status, refused.code) == (400, 7401)
    # What was handed in before ends without running.
    answers = await wait_for_answers(gateway, kept.json["result"]["request_id"])
    assert answers["responses"][0]["error"]["code"] == 7401


async def test_a_disabled_token_ends_what_it_has_handed_in(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    node.script = lambda stream: stream.fail(PoolSaturated("full"))
    reply = await hand_in(gateway, HI)
    account_id = gateway.tenant.account_id
    second = await gateway.tenancy.create_api_token(
        account_id, "second", frozenset(await _list_permissions(gateway))
    )
    (first,) = [
        one for one in await gateway.tenancy.list_api_tokens(account_id) if one.name == "tests"
    ]
    await gateway.tenancy.set_api_token_status(
        account_id, first.api_token_id, ApiTokenStatus.DISABLED
    )
    gateway.tenant.api_token = second.value.reveal()
    answers = await wait_for_answers(gateway, reply.json["result"]["request_id"])
    assert answers["responses"][0]["error"]["code"] == 10000


async def _list_permissions(gateway: RunningGateway) -> list[object]:
    tokens = await gateway.tenancy.list_api_tokens(gateway.tenant.account_id)
    return [permission for token in tokens for permission in token.permissions]


async def test_every_item_is_held_to_the_accounts_limits(
    tmp_path: Path, database_template: Path, node: ScriptedNode
) -> None:
    num_begun = num_done = most = 0

    async def count(stream: ScriptedStream) -> None:
        nonlocal num_begun, num_done, most
        num_begun += 1
        most = max(most, num_begun - num_done)
        await asyncio.sleep(0)
        num_done += 1
        await stream.answer("a")

    node.script = count
    async with run_gateway(
        tmp_path, database_template, [node], batches={"poll_s": 0.05}
    ) as gateway:
        await set_limits(gateway, concurrent_streams=4)
        answers = await run_batch(gateway, *[HI] * 12)
        assert all(answer["success"] for answer in answers)
        assert 1 <= most <= 2  # half of the streams are left for clients
        await set_limits(gateway, neurons_per_day=0)
        (answer,) = await run_batch(gateway, HI)
        assert answer["error"]["code"] == 3036


async def test_items_go_only_where_account_and_request_allow(
    tmp_path: Path, database_template: Path, node: ScriptedNode
) -> None:
    async with (
        run_node("node-2", "enam") as far,
        run_gateway(tmp_path, database_template, [node, far]) as gateway,
    ):
        bound = await gateway.add_tenant(["enam"])
        await wait_until(
            lambda: len(gateway.gateway._pool.fleet.roster.laws.list_regions(["eu"])) == 2
        )
        await run_batch(gateway, HI, HI, tenant=bound)
        assert {stream.grant.regions for stream in far.streams} == {("enam",)}
        narrow = {"x-hearth-regions": "weur"}
        reply = await hand_in(gateway, HI, headers=narrow)
        await wait_for_answers(gateway, reply.json["result"]["request_id"])
        assert node.streams[-1].grant.regions == ("weur",)
        reply = await hand_in(gateway, HI, headers=narrow, tenant=bound)
        answers = await wait_for_answers(gateway, reply.json["result"]["request_id"], bound)
        assert answers["responses"][0]["error"]["code"] == 7403
        assert len(node.streams) == 1


async def test_a_batch_that_is_sent_again_with_its_key_is_the_same_and_its_progress_is_not(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    node.script = lambda stream: stream.fail(PoolSaturated("full"))
    key = {"idempotency-key": "once"}
    first, second = [await hand_in(gateway, HI, headers=key) for _ in range(2)]
    assert first.json == second.json
    poll, again = {"request_id": first.json["result"]["request_id"]}, {"idempotency-key": "again"}
    assert "status" in (await ask_batch(gateway, poll, headers=again)).json["result"]
    node.script = talk_to_the_end
    await wait_for_answers(gateway, poll["request_id"])
    assert "responses" in (await ask_batch(gateway, poll, headers=again)).json["result"]


async def test_items_that_find_no_room_in_time_fail(
    tmp_path: Path, database_template: Path, node: ScriptedNode
) -> None:
    node.script = lambda stream: stream.fail(PoolSaturated("full"))
    times = {"patience_s": 0.2, "poll_s": 0.05}
    async with run_gateway(tmp_path, database_template, [node], batches=times) as gateway:
        (answer,) = await run_batch(gateway, HI | {"external_reference": "mine"})
        assert (answer["error"]["code"], answer["external_reference"]) == (3007, "mine")


async def test_items_that_may_only_go_where_no_room_is_hold_up_nobody_elses(
    tmp_path: Path, database_template: Path, node: ScriptedNode
) -> None:
    async with (
        run_node("node-2", "enam") as far,
        run_gateway(
            tmp_path, database_template, [node, far], batches={"poll_s": 0.05, "max_running": 2}
        ) as gateway,
    ):
        far.script = lambda stream: stream.fail(PoolSaturated("full"))
        await wait_until(
            lambda: len(gateway.gateway._pool.fleet.roster.laws.list_regions(["eu"])) == 2
        )
        hostile = await gateway.add_tenant()
        narrow = {"x-hearth-regions": "enam"}
        await hand_in(gateway, *[HI] * 8, headers=narrow, tenant=hostile)
        await wait_until(lambda: bool(far.streams))
        assert all(answer["success"] for answer in await run_batch(gateway, HI, HI))
        # The control: nothing but the room is missing.
        far.script = lambda stream: stream.answer("late")
        await wait_until(lambda: len(far.streams) > 8)


async def test_items_that_are_refused_wherever_they_come_hold_up_nobody_elses(
    tmp_path: Path, database_template: Path, node: ScriptedNode
) -> None:
    async def refuse_hostile(stream: ScriptedStream) -> None:
        is_hostile = stream.grant.account_id == hostile.account_id
        await (stream.fail(PoolSaturated("full")) if is_hostile else stream.answer("ok"))

    async with run_gateway(
        tmp_path, database_template, [node], batches={"poll_s": 0.05, "max_running": 2}
    ) as gateway:
        node.script = refuse_hostile
        hostile = await gateway.add_tenant()
        await hand_in(gateway, *[HI] * 8, tenant=hostile)
        await wait_until(lambda: bool(node.streams))
        assert all(answer["success"] for answer in await run_batch(gateway, HI, HI))


async def test_a_killed_gateway_loses_no_item_and_bills_none_twice(
    tmp_path: Path, database_template: Path, node: ScriptedNode
) -> None:
    started = asyncio.Event()

    async def hold(stream: ScriptedStream) -> None:
        if read_prompt(stream).endswith(("1", "3", "5", "7")):
            await talk_to_the_end(stream)
        else:
            await stream.put(Accepted(NUM_PROMPT, 0))
            started.set()
            await stream.confirm_abort(1)

    node.script = hold
    requests = [{"prompt": f"item {number}", "max_tokens": 4} for number in range(40)]
    times = {"poll_s": 0.05, "lease_s": 60}  # its own next life waits for no lease
    async with run_sqlite_process(tmp_path, database_template, node, batches=times) as (
        process,
        gateway,
        _,
    ):
        reply = await hand_in(gateway, *requests)
        batch_id = reply.json["result"]["request_id"]
        await started.wait()
        await wait_until(lambda: len(node.streams) >= 16)
        await process.kill()
        node.script = talk_to_the_end
        await process.start()
        await gateway.wait_until_ready()
        answers = await wait_for_answers(gateway, batch_id)
        assert [one["success"] for one in answers["responses"]] == [True] * 40
        assert {one["result"]["response"] for one in answers["responses"]} == {"w0 w1 w2 "}
        assert len(node.streams) > 40  # the control: some had to run again
        records = await wait_for_ledger(gateway, 40)
        assert len(records) == 40
        assert {record.cost_nano for record in records} == {compute_cost(3)}


async def test_an_answer_that_was_billed_and_lost_is_made_again_for_nothing(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    """The very moment between the journal and the store: the answer is dropped there once."""
    store = gateway.gateway._batches._store
    finish, dropped = store.finish_batch_item, []

    async def drop_once(item: object, owner: str, output: bytes) -> bool:
        if dropped:
            return await finish(item, owner, output)  # type: ignore[arg-type]
        dropped.append(item)
        await store.release_batch_items(owner)  # as the next start does
        return True

    store.finish_batch_item = drop_once  # type: ignore[method-assign]
    try:
        (answer,) = await run_batch(gateway, HI)
    finally:
        del store.finish_batch_item  # type: ignore[attr-defined]
    assert answer["success"]
    assert len(node.streams) == 2
    assert len(await list_records(gateway)) == 1


async def test_waiting_items_and_runs_are_in_the_metrics(gateway: RunningGateway) -> None:
    await run_batch(gateway, HI, {})

    async def is_counted() -> bool:
        reply = await gateway.send(
            "GET", "/metrics", api_token=gateway.operator, origin=gateway.admin
        )
        text = reply.body.decode()
        assert "hearth_gateway_batch_items_waiting" in text
        assert "hearth_gateway_batch_items_running" in text
        return (
            f'route="batch",status="200",model="{MODEL}"'.encode() in reply.body
            or f'model="{MODEL}",route="batch",status="200"' in text
        )

    await wait_until_async(is_counted)
