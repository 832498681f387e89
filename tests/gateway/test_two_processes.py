"""Two gateway processes on one PostgreSQL and one Redis: limits, budgets and changes are common."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator, Generator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from contracts.inference import Accepted, Finished, FinishReason, Usage
from contracts.quotas import QuotaLimits, QuotaScope
from contracts.usage import Outcome
from migrations.upgrade import upgrade_database
from tenancy.encryption.key_ring_file import load_or_create_key_ring
from tenancy.interfaces import ApiTokenStatus
from tests.fixtures.redis_server import RedisServer, needs_redis, run_redis
from tests.gateway.batch_client import hand_in, wait_for_answers
from tests.gateway.gateway_process import GatewayProcess, open_tenancy_of, run_processes
from tests.gateway.running_gateway import Reply, RunningGateway, Tenant, wait_until_async
from tests.gateway.scripted_node import MODEL, ScriptedNode, ScriptedStream, run_node
from tests.gateway.scripted_talks import ask, talk_and_hold, talk_to_the_end
from tests.gateway.test_money import _today as today
from tests.tenancy.postgres_server import create_database, is_postgres_expected, postgres_server

__all__ = ["postgres_server"]
pytestmark = [
    pytest.mark.slow,
    needs_redis,
    pytest.mark.skipif(not is_postgres_expected(), reason="no PostgreSQL is installed"),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(600),
]
LEASE_S = 3.0
WAIT_S = 40.0
WHOLE = {"prompt": "Hi", "max_tokens": 20}


@dataclass
class Pair:
    """The processes, and what stands around them."""

    processes: list[GatewayProcess]
    gateways: list[RunningGateway]
    node: ScriptedNode

    async def add_tenant(self, **limits: int) -> Tenant:
        """A new account with limits that every process knows."""
        tenant = await self.gateways[0].add_tenant()
        if limits:
            await self.set_limits(tenant, **limits)
        return tenant

    async def set_limits(self, tenant: Tenant, **limits: int) -> None:
        """Returns once every process has seen them: a later change to another account shows."""
        tenancy = self.gateways[0].tenancy
        probe = await self.gateways[0].add_tenant()
        for gateway in self.gateways:
            await wait_for_status(gateway, probe, 200)  # from now on remembered there
        await tenancy.set_quota(QuotaScope(tenant.account_id), QuotaLimits(**limits))
        await tenancy.set_quota(QuotaScope(probe.account_id), QuotaLimits(requests_per_min=0))
        for gateway in self.gateways:
            await wait_for_status(gateway, probe, 429)

    async def ask_all(self, tenant: Tenant, number: int, body: object) -> list[Reply]:
        """So many requests at once, to the processes in turn."""
        asked = [self.gateways[one % 2].run(body, tenant=tenant) for one in range(number)]
        return await asyncio.gather(*asked)


async def wait_for_status(gateway: RunningGateway, tenant: Tenant, status: int) -> None:
    """Returns once a process answers a tenant so."""

    async def is_so() -> bool:
        return (await gateway.run(WHOLE, tenant=tenant)).status == status

    await wait_until_async(is_so, WAIT_S)


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Generator[RedisServer]:
    """What both count in."""
    with run_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def database_url(postgres_server: str) -> Generator[str]:
    """The database of both."""
    with create_database(postgres_server) as url:
        upgrade_database(url)
        yield url


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(
    tmp_path_factory: pytest.TempPathFactory, redis: RedisServer, database_url: str
) -> AsyncGenerator[Pair]:
    """Two processes in front of one node, with a place each for their journals."""
    folder = tmp_path_factory.mktemp("pair")
    load_or_create_key_ring(folder / "key_ring.json", secrets.token_bytes)
    async with run_node() as node:
        processes = [
            GatewayProcess(
                make_folder(folder, name),
                database_url,
                [node],
                gateway_id=name,
                key_ring={"file": str(folder / "key_ring.json")},
                shared_limits={"url": redis.url, "budget_s": 10.0, "lease_s": LEASE_S},
            )
            for name in ("gateway-1", "gateway-2")
        ]
        tenancy = open_tenancy_of(folder, database_url)
        async with run_processes(processes, tenancy) as gateways:
            yield Pair(processes, gateways, node)


def make_folder(folder: Path, name: str) -> Path:
    """A folder of a process's own, beside the common key ring."""
    own = folder / name
    own.mkdir()
    return own


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_no_more_streams_run_than_fit_however_many_come_to_both(
    pair: Pair, is_streamed: bool
) -> None:
    running = most = 0
    may_end = asyncio.Event()

    async def hold(stream: ScriptedStream) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await stream.put(Accepted(7, 0))
        await may_end.wait()
        running -= 1
        await stream.put(Finished(FinishReason.STOP, Usage(7, 0, 1)))

    tenant = await pair.add_tenant(concurrent_streams=3)
    pair.node.script = hold
    body = ask(1, is_streamed=is_streamed)
    asked = [
        asyncio.create_task(pair.gateways[one % 2].run(body, tenant=tenant)) for one in range(24)
    ]

    async def are_refused() -> bool:
        return sum(one.done() for one in asked) >= 21 and running >= 3

    await wait_until_async(are_refused, WAIT_S)
    may_end.set()
    replies = await asyncio.gather(*asked)
    statuses = [reply.status for reply in replies]
    assert sorted(statuses) == [200] * 3 + [429] * 21, [reply.body for reply in replies]
    assert most == 3
    assert {reply.code for reply in replies if reply.status == 429} == {7430}


async def test_no_more_money_is_held_than_there_is_however_many_come_to_both(pair: Pair) -> None:
    bound = (len(b'{"prompt":"Hi","max_tokens":20}') + 256) * 10 + 20 * 20
    may_answer = asyncio.Event()

    async def hold_on(stream: ScriptedStream) -> None:
        await may_answer.wait()  # not even accepted: what is held is the bound
        await stream.answer("a")

    tenant = await pair.add_tenant(spend_nano_per_month=5 * bound)
    pair.node.script = hold_on
    asked = [
        asyncio.create_task(pair.gateways[one % 2].run(WHOLE, tenant=tenant)) for one in range(24)
    ]

    async def are_refused() -> bool:
        return sum(one.done() for one in asked) >= 19

    await wait_until_async(are_refused, WAIT_S)
    may_answer.set()
    replies = await asyncio.gather(*asked)
    assert sorted(reply.status for reply in replies) == [200] * 5 + [429] * 19
    assert {reply.code for reply in replies if reply.status == 429} == {3036}


async def test_no_more_requests_and_tokens_are_admitted_than_fit(pair: Pair) -> None:
    pair.node.script = talk_to_the_end
    loop = asyncio.get_running_loop()
    tenant = await pair.add_tenant(requests_per_min=6)
    began_s = loop.time()
    replies = await pair.ask_all(tenant, 24, ask(1))
    fitting = 6 + int((loop.time() - began_s) / 10)  # one comes back every ten seconds
    admitted = sum(reply.status == 200 for reply in replies)
    assert 6 <= admitted <= fitting
    assert {reply.code for reply in replies if reply.status == 429} == {7429}


async def test_a_batch_is_run_by_both_and_each_item_once(pair: Pair) -> None:
    pair.node.script = talk_to_the_end
    tenant = await pair.add_tenant()
    first, second = pair.gateways
    num_before = len(pair.node.streams)
    requests = [ask(number % 4 + 1) for number in range(60)]
    reply = await hand_in(first, *requests, tenant=tenant)
    answers = await wait_for_answers(second, reply.json["result"]["request_id"], tenant)
    lengths = [one["result"]["usage"]["completion_tokens"] for one in answers["responses"]]
    assert lengths == [number % 4 + 1 for number in range(60)]
    assert len(pair.node.streams) == num_before + 60

    async def are_billed() -> bool:
        records = await first.tenancy.list_usage_records(tenant.account_id, today(), limit=1000)
        return len(records) == 60

    await wait_until_async(are_billed, WAIT_S)


async def test_a_revoked_token_and_a_changed_quota_are_seen_by_both_under_load(pair: Pair) -> None:
    """Two seconds are promised: polled until it holds, for machines can be slow; then it stays."""
    pair.node.script = talk_to_the_end
    tenancy = pair.gateways[0].tenancy
    background, tenant = await pair.add_tenant(), await pair.add_tenant()
    is_over = asyncio.Event()

    async def load(gateway: RunningGateway) -> None:
        while not is_over.is_set():
            assert (await gateway.run(ask(3), tenant=background)).status == 200

    workers = [asyncio.create_task(load(pair.gateways[one % 2])) for one in range(6)]
    scope = QuotaScope(tenant.account_id)
    (token,) = await tenancy.list_api_tokens(tenant.account_id)

    async def set_requests(number: int) -> None:
        await tenancy.set_quota(scope, QuotaLimits(requests_per_min=number))

    async def set_status(status: ApiTokenStatus) -> None:
        await tenancy.set_api_token_status(tenant.account_id, token.api_token_id, status)

    changes = [
        (set_requests(0), 429),
        (set_requests(10**6), 200),
        (set_status(ApiTokenStatus.DISABLED), 401),
        (set_status(ApiTokenStatus.ACTIVE), 200),
        (tenancy.delete_api_token(tenant.account_id, token.api_token_id), 401),
    ]
    try:
        for change, status in changes:
            await change
            for gateway in pair.gateways:
                await wait_for_status(gateway, tenant, status)
            for _ in range(5):
                replies = await pair.ask_all(tenant, 4, WHOLE)
                assert {reply.status for reply in replies} == {status}
    finally:
        is_over.set()
        await asyncio.gather(*workers)


async def test_the_places_of_a_killed_gateway_are_free_within_the_lease(pair: Pair) -> None:
    """And after its next start the ledger has what it had received, once."""
    doomed, survivor = pair.gateways
    tenant = await pair.add_tenant(concurrent_streams=3, spend_nano_per_month=10**9)
    pair.node.script = talk_and_hold
    pair.node.streams.clear()
    body = ask(2, is_streamed=True)
    held = [asyncio.create_task(doomed.run(body, tenant=tenant)) for _ in range(3)]

    async def are_held() -> bool:
        return len(pair.node.streams) == 3

    await wait_until_async(are_held, WAIT_S)
    await asyncio.sleep(1.5 * LEASE_S)  # renewed, or they would be free by now
    assert (await survivor.run(WHOLE, tenant=tenant)).code == 7430
    await pair.processes[0].kill()
    for one in held:
        with contextlib.suppress(aiohttp.ClientError):
            await one
    pair.node.script = talk_to_the_end
    await wait_for_status(survivor, tenant, 200)
    replies = await asyncio.gather(*(survivor.run(WHOLE, tenant=tenant) for _ in range(3)))
    assert {reply.status for reply in replies} <= {200, 429}
    await pair.processes[0].start()

    async def is_replayed() -> bool:
        records = await survivor.tenancy.list_usage_records(tenant.account_id, today(), limit=1000)
        failed = [one for one in records if one.outcome is Outcome.FAILED]
        assert len(failed) <= 3
        assert all(one.tokens.num_output == 2 and one.model == MODEL for one in failed)
        return len(failed) == 3

    await wait_until_async(is_replayed, WAIT_S)
