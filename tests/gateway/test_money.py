"""What requests cost, through a whole gateway: refused, aborted, broken and complete ones."""

import asyncio
from pathlib import Path

import pytest

from contracts.errors import InvariantBroken, to_error_report
from contracts.inference import Accepted, Delta, Failed, Finished, FinishReason, Usage
from contracts.pricing import TokenCounts, TokenRates, compute_charge, find_price
from contracts.quotas import QuotaLimits, QuotaScope
from contracts.usage import Outcome, UsageRecord, read_day
from tests.gateway.raw_http import connect, format_request, read_head
from tests.gateway.running_gateway import (
    RunningGateway,
    Tenant,
    run_gateway,
    wait_until,
    wait_until_async,
)
from tests.gateway.scripted_node import MODEL, ScriptedNode, ScriptedStream

STREAM = {"prompt": "Hi", "stream": True, "max_tokens": 20}
WHOLE = {"prompt": "Hi", "max_tokens": 20}


async def list_records(gateway: RunningGateway, tenant: Tenant | None = None) -> list[UsageRecord]:
    """The ledger of an account, once the journal is empty."""
    bookkeeping = gateway.gateway._bookkeeping
    await bookkeeping.writer.flush()
    account_id = (tenant or gateway.tenant).account_id
    today = await gateway.tenancy.list_usage_records(account_id, _today(), limit=1000)
    return sorted(today, key=lambda one: one.finished_unix_ms)


def _today() -> int:
    import time

    return int(time.time()) // 86_400


async def wait_for_records(gateway: RunningGateway, number: int) -> list[UsageRecord]:
    """The ledger once it has `number` records."""
    found: list[UsageRecord] = []

    async def is_there() -> bool:
        found[:] = await list_records(gateway)
        return len(found) >= number

    await wait_until_async(is_there)
    return found


async def set_limits(gateway: RunningGateway, **limits: int) -> None:
    """Limits on the first account, known to the gateway."""
    scope = QuotaScope(gateway.tenant.account_id)
    await gateway.tenancy.set_quota(scope, QuotaLimits(**limits))
    await gateway.gateway._cache.poll_epoch()


async def assert_nothing_is_held(gateway: RunningGateway) -> None:
    """No lease, no reservation, no part of a budget."""
    books = gateway.gateway._bookkeeping

    def is_free() -> bool:
        held = any(one.held for one in books.parts.slices._slices.values())
        return not books.books.list_limited() and not books.parts.limiter.num_leases and not held

    await wait_until(is_free)


@pytest.mark.parametrize("body", [WHOLE, STREAM])
async def test_a_complete_answer_is_recorded_and_charged(
    gateway: RunningGateway, node: ScriptedNode, body: dict[str, object]
) -> None:
    async def answer(stream: ScriptedStream) -> None:
        await stream.put(Accepted(100, 60))
        await stream.put(Delta("ab", (1, 2)))
        await stream.put(Finished(FinishReason.STOP, Usage(100, 60, 9, 4)))

    node.script = answer
    reply = await gateway.run(body)
    assert reply.status == 200
    (record,) = await list_records(gateway)
    assert record.request_id == reply.headers["x-request-id"]
    assert record.tokens == TokenCounts(40, 60, 5, 4)
    price = find_price(await gateway.tenancy.list_prices(), MODEL)
    assert price is not None
    charge = compute_charge(price, record.tokens)
    assert (record.cost_nano, record.num_microneurons) == (
        charge.cost_nano,
        charge.num_microneurons,
    )
    assert charge.cost_nano == (40 * 10_000_000 + 60 * 2_500_000 + 9 * 20_000_000) // 10**6
    assert record.price_version == price.version
    assert (record.outcome, record.model, record.node_id) == (Outcome.COMPLETE, MODEL, node.node_id)
    assert read_day(record.request_id) == _today()


@pytest.mark.parametrize("body", [WHOLE, STREAM])
async def test_no_node_makes_anybody_pay_more_than_was_asked_of_it(
    gateway: RunningGateway, node: ScriptedNode, body: dict[str, object]
) -> None:
    much = 2**31 - 1

    async def answer(stream: ScriptedStream) -> None:
        await stream.put(Accepted(much, 0))
        await stream.put(Delta("ab", (1, 2)))
        await stream.put(Finished(FinishReason.STOP, Usage(much, 0, much, 4)))

    await set_limits(gateway, spend_nano_per_month=10**9)
    node.script = answer
    assert (await gateway.run(body)).status == 200
    (record,) = await list_records(gateway)
    assert record.tokens == TokenCounts(node.context_window, 0, 16, 4)  # of 20 asked for
    node.script = _answer_one
    assert (await gateway.run(WHOLE)).status == 200  # the month's budget is not gone
    await assert_nothing_is_held(gateway)


@pytest.mark.parametrize("num_seen", [0, 1, 3, 9])
@pytest.mark.parametrize("body", [STREAM, WHOLE])
async def test_who_leaves_pays_for_what_the_gateway_received(
    gateway: RunningGateway, node: ScriptedNode, body: dict[str, object], num_seen: int
) -> None:
    """At 0, 1, k and last-1 chunks; the node tells what it had sent when the abort came."""
    sent = asyncio.Event()

    async def generate(stream: ScriptedStream) -> None:
        await stream.put(Accepted(7, 0))
        for number in range(num_seen):
            await stream.put(Delta(f"w{number} ", (number,)))
        sent.set()
        await stream.confirm_abort(num_completion=num_seen)

    await set_limits(
        gateway, concurrent_streams=1, tokens_per_min=100_000, spend_nano_per_month=10**9
    )
    node.script = generate
    async with connect(gateway) as (reader, writer):
        writer.write(format_request(gateway, body))
        await asyncio.wait_for(sent.wait(), 60)
        if body is STREAM:
            await read_head(reader)
            if num_seen:
                await reader.readuntil(f"w{num_seen - 1}".encode())
    (record,) = await wait_for_records(gateway, 1)
    assert record.outcome is Outcome.ABORTED
    assert record.tokens == TokenCounts(7, 0, num_seen)
    assert record.cost_nano == (7 * 10 + num_seen * 20)
    await assert_nothing_is_held(gateway)


@pytest.mark.parametrize("num_sent", [0, 1, 5])
async def test_a_node_that_dies_in_a_stream_costs_what_it_had_sent(
    gateway: RunningGateway, node: ScriptedNode, num_sent: int
) -> None:
    async def die(stream: ScriptedStream) -> None:
        if stream.attempt > 1:
            await stream.fail(InvariantBroken("Nobody goes on with this."))
            return
        await stream.put(Accepted(7, 0))
        for number in range(num_sent):
            await stream.put(Delta("x", (number,)))
        await asyncio.sleep(0.05)
        node.drop_connections()

    await set_limits(gateway, concurrent_streams=1)
    node.script = die
    await gateway.run(STREAM)
    (record,) = await wait_for_records(gateway, 1)
    assert record.outcome is Outcome.FAILED
    assert record.tokens == TokenCounts(7, 0, num_sent)
    await assert_nothing_is_held(gateway)


async def test_an_answer_that_never_reached_its_client_is_recorded_and_free(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    async def fail_late(stream: ScriptedStream) -> None:
        await stream.put(Accepted(7, 0))
        error = to_error_report(InvariantBroken("Its step failed."))
        await stream.put(Failed(error, Usage(7, 0, 2)))

    node.script = fail_late
    assert (await gateway.run(WHOLE)).status == 500
    (record,) = await wait_for_records(gateway, 1)
    assert (record.outcome, record.tokens) == (Outcome.FAILED, TokenCounts(7, 0, 2))
    assert (record.cost_nano, record.num_microneurons, record.price_version) == (0, 0, None)


async def test_refused_requests_leave_no_record_and_hold_nothing(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    await set_limits(gateway, requests_per_min=2, spend_nano_per_month=10**9)
    replies = [(await gateway.run(WHOLE)) for _ in range(4)]
    assert [reply.status for reply in replies] == [200, 200, 429, 429]
    assert (await gateway.run(b"{")).status == 400
    assert (await gateway.run(WHOLE, "@hearth/tests/none")).status == 400
    assert len(await list_records(gateway)) == 2
    await assert_nothing_is_held(gateway)


async def test_the_headers_tell_where_the_limit_stands(gateway: RunningGateway) -> None:
    await set_limits(gateway, requests_per_min=2)
    first, second, refused = [(await gateway.run(WHOLE)) for _ in range(3)]
    assert first.headers["x-ratelimit-limit"] == "2"
    assert first.headers["x-ratelimit-remaining"] == "1"
    assert second.headers["x-ratelimit-remaining"] == "0"
    assert first.headers["x-ratelimit-reset"].endswith(" GMT")
    assert first.headers["ratelimit"].startswith('"default";r=1;t=')
    assert first.headers["ratelimit-policy"] == '"default";q=2;w=60'
    assert (refused.status, refused.code) == (429, 7429)
    assert refused.headers["x-should-retry"] == "true"
    assert 0 < int(refused.headers["retry-after"]) <= 30
    assert refused.headers["x-ratelimit-remaining"] == "0"
    assert '"default";r=0;t=' in refused.headers["ratelimit"]


async def test_a_used_up_spend_is_named_in_money_and_claims_no_window_of_a_minute(
    gateway: RunningGateway,
) -> None:
    await set_limits(gateway, spend_nano_per_month=4)
    refused = await gateway.run(WHOLE)
    assert (refused.status, refused.code) == (429, 3036)
    assert "a spend of 0.000000004 per month" in refused.body.decode()
    assert "w=60" not in refused.headers["ratelimit-policy"]


async def test_a_budget_with_too_little_left_says_what_the_request_may_cost(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    num_bytes = len(b'{"prompt":"Hi","max_tokens":20}')
    bound = (num_bytes + 256) * 10 + 20 * 20
    await set_limits(gateway, spend_nano_per_month=bound)
    node.script = _answer_one
    assert (await gateway.run(WHOLE)).status == 200  # the control: the bound itself fits
    refused = await gateway.run(WHOLE)
    assert (refused.status, refused.code) == (429, 3036)
    assert f"which may cost {bound / 10**9:.8f}." in refused.body.decode()
    assert refused.headers["x-should-retry"] == "false"

    await set_limits(gateway, spend_nano_per_month=0)
    closed = (await gateway.run(WHOLE)).body.decode()
    assert "is reached: a spend of 0 per month" in closed
    assert "may cost" not in closed


async def test_a_budget_that_is_used_up_says_not_to_try_again(gateway: RunningGateway) -> None:
    await set_limits(gateway, neurons_per_day=0)
    refused = await gateway.run(WHOLE)
    assert (refused.status, refused.code) == (429, 3036)
    assert refused.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("body", [WHOLE, STREAM])
async def test_of_many_at_once_no_more_run_than_the_limit_says(
    gateway: RunningGateway, node: ScriptedNode, body: dict[str, object]
) -> None:
    running = most = 0

    async def take_a_while(stream: ScriptedStream) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await stream.put(Accepted(7, 0))
        await asyncio.sleep(0.1)
        running -= 1
        await stream.put(Finished(FinishReason.STOP, Usage(7, 0, 1)))

    await set_limits(gateway, concurrent_streams=3)
    node.script = take_a_while
    replies = await asyncio.gather(*(gateway.run(body) for _ in range(40)))
    assert most == 3
    refused = [reply for reply in replies if reply.status == 429]
    assert {reply.code for reply in refused} == {7430}
    assert len(await list_records(gateway)) == 40 - len(refused)
    await assert_nothing_is_held(gateway)


async def test_a_budget_of_money_is_never_exceeded_by_many_at_once(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    """Each may cost (7 + 256 + bytes) x 10 + 20 x 20; the budget is one that fits five bounds."""
    num_bytes = len(b'{"prompt":"Hi","max_tokens":20}')
    bound = (num_bytes + 256) * 10 + 20 * 20

    may_answer = asyncio.Event()

    async def hold_on(stream: ScriptedStream) -> None:
        await may_answer.wait()  # not even accepted: what is held is the bound
        await stream.answer("a")

    await set_limits(gateway, spend_nano_per_month=5 * bound)
    node.script = hold_on
    running = [asyncio.create_task(gateway.run(WHOLE)) for _ in range(30)]
    await wait_until(lambda: sum(task.done() for task in running) >= 25, timeout_s=30)
    may_answer.set()
    replies = await asyncio.gather(*running)
    statuses = [reply.status for reply in replies]
    assert statuses.count(200) == 5
    assert {reply.code for reply in replies if reply.status != 200} == {3036}
    node.script = _answer_one
    for _ in range(200):  # the rest of the budget is spent as exactly as it was held
        if (await gateway.run(WHOLE)).status != 200:
            break
    spent = sum(record.cost_nano for record in await list_records(gateway))
    assert 5 * bound - bound < spent <= 5 * bound


async def _answer_one(stream: ScriptedStream) -> None:
    await stream.answer("a")


async def test_a_spent_budget_stays_spent_after_a_restart(
    tmp_path: Path, database_template: Path, node: ScriptedNode
) -> None:
    import shutil

    async with run_gateway(tmp_path, database_template, [node]) as gateway:
        await set_limits(gateway, neurons_per_day=1)
        spent = 0
        while (await gateway.run(WHOLE)).status == 200:
            spent += 1
        assert spent
        tenant = gateway.tenant
    shutil.copyfile(tmp_path / "hearth.db", tmp_path / "kept.db")
    async with run_gateway(tmp_path, tmp_path / "kept.db", [node]) as gateway:
        assert (await gateway.run(WHOLE, tenant=tenant)).code == 3036
        assert (await gateway.run(WHOLE)).status == 200  # another account is not concerned


async def test_a_model_without_a_price_is_refused_unless_the_account_pays_nothing(
    gateway: RunningGateway,
) -> None:
    await gateway.tenancy.end_price("@hearth/*")
    await gateway.gateway._cache.poll_epoch()
    refused = await gateway.run(WHOLE)
    assert (refused.status, refused.code) == (403, 7440)
    await gateway.tenancy.set_account_metered(gateway.tenant.account_id, False)
    await gateway.gateway._cache.poll_epoch()
    assert (await gateway.run(WHOLE)).status == 200
    await gateway.tenancy.set_account_metered(gateway.tenant.account_id, True)
    await gateway.tenancy.set_price("*", TokenRates(0, 0, 0, 0))
    await gateway.gateway._cache.poll_epoch()
    assert (await gateway.run(WHOLE)).status == 200  # zero is a price
    records = await list_records(gateway)
    assert [record.cost_nano for record in records] == [0, 0]
    assert records[0].price_version is None
    assert records[1].price_version is not None


async def test_a_second_gateway_on_the_same_database_refuses_to_start(
    tmp_path: Path, database_template: Path, node: ScriptedNode, gateway: RunningGateway
) -> None:
    from contracts.errors import Conflict
    from gateway.app import create_gateway
    from gateway.sources import create_sources
    from tests.gateway.running_gateway import write_settings

    (tmp_path / "second").mkdir()
    settings = write_settings(tmp_path / "second", tmp_path / "hearth.db", [node])
    second = create_gateway(settings, create_sources())
    with pytest.raises(Conflict):
        await second.start()


async def test_changed_limits_are_seen_within_two_seconds_under_load(
    gateway: RunningGateway, node: ScriptedNode
) -> None:
    stop = asyncio.Event()

    async def load() -> None:
        while not stop.is_set():
            await gateway.run(WHOLE)

    workers = [asyncio.create_task(load()) for _ in range(8)]
    scope = QuotaScope(gateway.tenant.account_id)
    try:
        for limit, status in ((0, 429), (10**6, 200), (0, 429)):
            await gateway.tenancy.set_quota(scope, QuotaLimits(requests_per_min=limit))

            async def is_seen(status: int = status) -> bool:
                return (await gateway.run(WHOLE)).status == status

            await wait_until_async(is_seen)  # two seconds are promised; machines can be slow
            for _ in range(20):  # and it stays so
                assert await is_seen()
    finally:
        stop.set()
        await asyncio.gather(*workers)


async def test_a_gateway_that_no_longer_follows_changes_says_so_and_trusts_nothing(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    await gateway.run(WHOLE)
    cache = gateway.gateway._cache

    async def fail() -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(cache, "poll_epoch", fail)

    async def is_unready() -> bool:
        return (await gateway.send("GET", "/health/ready", api_token=None)).status == 503

    await wait_until_async(is_unready, timeout_s=5.0)
    assert (await gateway.run(WHOLE)).status == 200
    scope = QuotaScope(gateway.tenant.account_id)
    await gateway.tenancy.set_quota(scope, QuotaLimits(requests_per_min=0))
    assert (await gateway.run(WHOLE)).status == 429  # at once: nothing is remembered
