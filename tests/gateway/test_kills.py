"""SIGKILL in the middle of requests: of the gateway, the node, Redis and PostgreSQL.

Afterwards the ledger has exactly what the gateway had received, once; nothing is held any more.
"""

import asyncio
import contextlib
import itertools
import os
import random
import secrets
import shutil
import signal
import sys
from collections.abc import AsyncGenerator, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import pytest
from sqlalchemy import text

from contracts.errors import StoreUnavailable
from contracts.ids import NodeId
from contracts.inference import Accepted, Delta, Finished, FinishReason, Usage
from contracts.pricing import TokenCounts
from contracts.quotas import QuotaLimits, QuotaScope
from contracts.usage import Outcome, Step, UsageRecord
from gateway.metering.open_usage import read_open_usage
from migrations.upgrade import upgrade_database
from tenancy.db import Database, create_engine, parse_database_url
from tests.fixtures.redis_server import needs_redis, run_redis
from tests.gateway.gateway_process import GatewayProcess, open_tenancy_of, run_processes
from tests.gateway.metering.test_journal import ROOT
from tests.gateway.raw_http import connect, format_request, read_head
from tests.gateway.running_gateway import (
    RunningGateway,
    Tenant,
    run_gateway,
    wait_until,
    wait_until_async,
)
from tests.gateway.scripted_node import ScriptedNode, ScriptedStream
from tests.gateway.scripted_talks import NUM_PROMPT, ask, talk_and_hold, talk_to_the_end
from tests.gateway.test_money import _today as today
from tests.gateway.test_money import assert_nothing_is_held, set_limits
from tests.tenancy.postgres_server import can_start_server, create_database, start_server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ROOM = {
    "concurrent_streams": 8,
    "tokens_per_min": 10**9,
    "requests_per_min": 10**9,
    "neurons_per_day": 10**9,
    "spend_nano_per_month": 10**15,
}
"""Limits of every kind, so that every kind of reservation is held."""


def compute_cost(num_deltas: int) -> int:
    """Of a request, in nano-units, at the bundled price of test models."""
    return NUM_PROMPT * 10 + num_deltas * 20


async def read_ledger(gateway: RunningGateway) -> list[UsageRecord]:
    """Every record of the first account today."""
    account_id = gateway.tenant.account_id
    return await gateway.tenancy.list_usage_records(account_id, today(), limit=1000)


async def wait_for_ledger(gateway: RunningGateway, num_records: int) -> list[UsageRecord]:
    """The ledger once it has so many records."""
    found: list[UsageRecord] = []

    async def is_there() -> bool:
        with contextlib.suppress(StoreUnavailable):  # it may be what has been killed
            found[:] = await read_ledger(gateway)
        return len(found) >= num_records

    await wait_until_async(is_there, timeout_s=30)
    return found


async def wait_for_sums(gateway: RunningGateway, records: list[UsageRecord]) -> None:
    """Returns once the roll-ups say the same as the ledger; more than that never."""
    expected = (len(records), sum(record.cost_nano for record in records))

    async def agree() -> bool:
        day = today()
        totals = await gateway.tenancy.list_usage(
            gateway.tenant.account_id, Step.DAY, day - 1, day + 1
        )
        got = (sum(one.num_requests for one in totals), sum(one.cost_nano for one in totals))
        assert got <= expected
        return got == expected

    await wait_until_async(agree, timeout_s=30)


async def sum_slices(database_url: str) -> int:
    """What gateways may still spend without asking, of all budgets."""
    database = Database(create_engine(parse_database_url(database_url)))
    async with database.read() as connection:
        query = text("SELECT COALESCE(SUM(remaining), 0) AS remaining FROM budget_slices")
        remaining = (await connection.execute(query)).one().remaining
    await database.close()
    return int(remaining)


async def limit(gateway: RunningGateway, **limits: int) -> None:
    """Limits on the first account, soon known to every process."""
    scope = QuotaScope(gateway.tenant.account_id)
    await gateway.tenancy.set_quota(scope, QuotaLimits(**limits))


@contextlib.asynccontextmanager
async def run_sqlite_process(
    folder: Path, template: Path, node: ScriptedNode, **sections: Any
) -> AsyncGenerator[tuple[GatewayProcess, RunningGateway, str]]:
    """One process on a new SQLite database, and the database's URL."""
    shutil.copyfile(template, folder / "hearth.db")
    url = f"sqlite+aiosqlite:///{folder / 'hearth.db'}"
    process = GatewayProcess(folder, url, [node], **sections)
    async with run_processes([process], open_tenancy_of(folder, url)) as (gateway,):
        yield process, gateway, url


async def read_deltas(gateway: RunningGateway, num_deltas: int) -> None:
    """A client that has read so many deltas of a stream, and waits for more until it is cut."""
    async with connect(gateway) as (reader, writer):
        writer.write(format_request(gateway, ask(num_deltas)))
        await read_head(reader)
        if num_deltas:
            await reader.readuntil(f"w{num_deltas - 1}".encode())
        while data := await reader.read(65536):
            if data.endswith(b"0\r\n\r\n"):
                return


async def test_a_gateway_killed_in_mid_stream_charges_what_it_had_received(
    tmp_path: Path, database_template: Path, node: ScriptedNode
) -> None:
    seen = (0, 1, 5, 40)
    async with run_sqlite_process(tmp_path, database_template, node) as (process, gateway, url):
        await limit(gateway, **ROOM)
        await wait_until_async(lambda: _has_rate_headers(gateway), timeout_s=30)
        num_before = len(await wait_for_ledger(gateway, 1))
        node.script = talk_to_the_end
        assert (await gateway.run(ask(3))).status == 200
        node.script = talk_and_hold
        node.streams.clear()
        whole = asyncio.create_task(gateway.run(ask(3, is_streamed=False)))
        await wait_until_async(lambda: _has_streams(node, 1))
        cut = [asyncio.create_task(read_deltas(gateway, number)) for number in seen]
        await wait_until_async(lambda: _has_streams(node, 1 + len(seen)))
        # Frames keep their order: a whole answer behind all of these says that they have come.
        node.script = talk_to_the_end
        assert (await gateway.run(ask(2))).status == 200
        assert not any(task.done() for task in cut)  # the control: they are under way
        await process.kill()
        await asyncio.gather(*cut, return_exceptions=True)
        with pytest.raises(aiohttp.ClientError):
            await whole
        await process.start()
        await gateway.wait_until_ready()
        records = await wait_for_ledger(gateway, num_before + 3 + len(seen))
        records = records[num_before:]
        complete = [one for one in records if one.outcome is Outcome.COMPLETE]
        assert sorted(one.tokens.num_output for one in complete) == [2, 3]
        failed = [one for one in records if one.outcome is Outcome.FAILED]
        assert len(complete) + len(failed) == len(records)
        (free,) = [one for one in failed if one.price_version is None]
        assert (free.tokens, free.cost_nano) == (TokenCounts(NUM_PROMPT, 0, 3), 0)
        charged = sorted((one for one in failed if one is not free), key=_num_output)
        assert [one.tokens for one in charged] == [TokenCounts(NUM_PROMPT, 0, k) for k in seen]
        assert [one.cost_nano for one in charged] == [compute_cost(k) for k in seen]
        assert {one.node_id for one in failed} == {node.node_id}
        everything = await read_ledger(gateway)
        await wait_for_sums(gateway, everything)
        assert await sum_slices(url) == 0  # what the dead process had leased is given back
        # Every place is free: exactly as many streams as the limit says start.
        node.script = talk_and_hold
        node.streams.clear()
        again = [asyncio.create_task(read_deltas(gateway, 1)) for _ in range(8)]
        await wait_until_async(lambda: _has_streams(node, 8), timeout_s=30)
        assert (await gateway.run(ask(1))).code == 7430  # the control: they are limited
        for task in again:
            task.cancel()
        await asyncio.gather(*again, return_exceptions=True)
        assert len(await wait_for_ledger(gateway, len(everything) + 8)) == len(everything) + 8


async def _has_streams(node: ScriptedNode, number: int) -> bool:
    return len(node.streams) >= number


def _num_output(record: UsageRecord) -> int:
    return record.tokens.num_output


async def _has_rate_headers(gateway: RunningGateway) -> bool:
    """True once the gateway knows that there are limits."""
    return "x-ratelimit-limit" in (await gateway.run(ask(1))).headers


async def test_a_gateway_killed_again_and_again_charges_each_answer_once(
    tmp_path: Path, database_template: Path, node: ScriptedNode
) -> None:
    """Clients come at all times, so that kills fall before, into and behind journal and ledger."""
    chance = random.Random(11)
    numbers = itertools.count()
    finished: dict[str, int] = {}
    is_over = asyncio.Event()

    async def ask_for_ever(gateway: RunningGateway, tenant: Tenant) -> None:
        while not is_over.is_set():
            number = next(numbers)
            await asyncio.sleep(0.05)
            with contextlib.suppress(aiohttp.ClientError, OSError):
                body = ask(number % 7, is_streamed=bool(number % 3))
                reply = await gateway.run(body, tenant=tenant)
                is_whole = reply.body.endswith(b"data: [DONE]\n\n") or not number % 3
                if reply.status == 200 and is_whole:
                    finished[reply.headers["x-request-id"]] = number % 7

    node.script = talk_to_the_end
    async with run_sqlite_process(tmp_path, database_template, node) as (process, gateway, _):
        await limit(gateway, **ROOM)
        clients = [asyncio.create_task(ask_for_ever(gateway, gateway.tenant)) for _ in range(6)]
        for _ in range(2):
            num_before = len(finished)
            await wait_until_async(lambda n=num_before: _is_true(len(finished) > n + 10), 30)
            await asyncio.sleep(chance.random() * 0.5)
            await process.kill()
            await process.start()
        is_over.set()
        await asyncio.gather(*clients)
        await gateway.wait_until_ready()
        records = await wait_for_ledger(gateway, len(finished))
        await wait_for_sums(gateway, records)
    by_id = {record.request_id: record for record in records}
    assert len(by_id) == len(records)  # nobody is charged twice
    assert set(finished) <= set(by_id)  # whoever saw the end of an answer is charged for it
    sent = {stream.grant.request_id: _num_sent(stream) for stream in node.streams}
    for request_id, record in by_id.items():
        if record.outcome is Outcome.COMPLETE:
            assert record.tokens == TokenCounts(NUM_PROMPT, 0, sent[request_id])
        else:
            assert record.tokens.num_output <= sent[request_id]
    for request_id, num_deltas in finished.items():
        assert by_id[request_id].outcome is Outcome.COMPLETE  # type: ignore[index]
        assert by_id[request_id].tokens.num_output == num_deltas  # type: ignore[index]


async def _is_true(value: bool) -> bool:
    return value


def _num_sent(stream: ScriptedStream) -> int:
    return (stream.request.sampling.max_tokens or 1) - 1


@dataclass
class NodeProcess:
    """A scripted node in a process of its own, which talks and holds."""

    node_id: NodeId
    url: str
    pair_key: bytes
    process: asyncio.subprocess.Process


@contextlib.asynccontextmanager
async def run_node_process() -> AsyncGenerator[NodeProcess]:
    """One that listens."""
    key = secrets.token_bytes(32)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.gateway.node_process", key.hex()),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        port = int(await asyncio.wait_for(process.stdout.readline(), 60))
        yield NodeProcess(NodeId("node-1"), f"ws://127.0.0.1:{port}", key, process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_a_node_killed_in_mid_stream_costs_what_had_come_from_it(
    tmp_path: Path, database_template: Path
) -> None:
    seen = (0, 1, 5)
    async with (
        run_node_process() as node,
        run_gateway(tmp_path, database_template, [node]) as gateway,
    ):
        await set_limits(gateway, **ROOM)
        cut = [asyncio.create_task(read_deltas(gateway, number)) for number in seen]
        limited = gateway.gateway._bookkeeping.books.list_limited
        tallies = gateway.gateway._bookkeeping.books.open_usage
        await wait_until(lambda: tallies.num_open == len(limited()) == len(seen))
        await wait_for_counts(tmp_path, sum(seen))
        assert not any(task.done() for task in cut)
        node.process.send_signal(signal.SIGKILL)
        await asyncio.wait_for(asyncio.gather(*cut), 30)
        records = sorted(await wait_for_ledger(gateway, len(seen)), key=_num_output)
        assert [one.tokens for one in records] == [TokenCounts(NUM_PROMPT, 0, k) for k in seen]
        assert {one.outcome for one in records} == {Outcome.FAILED}
        assert [one.cost_nano for one in records] == [compute_cost(k) for k in seen]
        await assert_nothing_is_held(gateway)
        await wait_for_sums(gateway, records)


async def wait_for_counts(folder: Path, num_generated: int) -> None:
    """Returns once the gateway has received so many tokens of requests that are open."""
    (file,) = (folder / "journal").glob("*.open")

    def have_come() -> bool:
        return sum(one.tokens.num_output for one in read_open_usage(file)) == num_generated

    await wait_until(have_come, timeout_s=30)


@needs_redis
async def test_redis_killed_in_mid_stream_costs_nobody_anything(
    tmp_path: Path, database_template: Path, node: ScriptedNode
) -> None:
    with run_redis(tmp_path) as server:
        shared = {"url": server.url, "budget_s": 5.0, "probe_pause_s": 0.2, "max_failures": 1}
        async with run_gateway(
            tmp_path, database_template, [node], shared_limits=shared
        ) as gateway:
            await set_limits(gateway, **ROOM | {"concurrent_streams": 2})
            may_end = asyncio.Event()

            async def talk(stream: ScriptedStream) -> None:
                await stream.put(Accepted(NUM_PROMPT, 0))
                await stream.put(Delta("a", (1,)))
                await may_end.wait()
                await stream.put(Finished(FinishReason.STOP, Usage(NUM_PROMPT, 0, 4)))

            node.script = talk
            running = [asyncio.create_task(gateway.run(ask(4))) for _ in range(2)]
            await wait_until(lambda: len(node.streams) == 2)
            assert (await gateway.run(ask(4))).code == 7430  # the control: both places are taken
            server.kill()
            may_end.set()
            replies = await asyncio.gather(*running)
            assert [reply.status for reply in replies] == [200, 200]
            assert (await gateway.run(ask(4))).status == 200  # its share of the limit, meanwhile
            server.start()
            limiter = gateway.gateway._bookkeeping.parts.limiter
            await wait_until(limiter._breaker.is_closed, timeout_s=30)  # type: ignore[attr-defined]
            may_end.clear()
            running = [asyncio.create_task(gateway.run(ask(4))) for _ in range(2)]
            await wait_until(lambda: len(node.streams) == 5, timeout_s=30)  # no place is lost
            assert (await gateway.run(ask(4))).code == 7430
            may_end.set()
            await asyncio.gather(*running)
            records = await wait_for_ledger(gateway, 5)
            assert [one.tokens for one in records] == [TokenCounts(NUM_PROMPT, 0, 4)] * 5
            await wait_for_sums(gateway, records)


@pytest.fixture(scope="module")
def own_postgres() -> Generator[str]:
    """A database on a server that nobody else uses."""
    with start_server() as server, create_database(server) as url:
        upgrade_database(url)
        yield url


@pytest.mark.skipif(not can_start_server(), reason="PostgreSQL is not installed")
async def test_postgresql_killed_in_mid_stream_makes_records_wait_and_loses_none(
    tmp_path: Path, node: ScriptedNode, own_postgres: str
) -> None:
    """SIGKILL of a back end, which takes all others with it: the server recovers by itself."""
    shared = {"url": "redis://127.0.0.1:1/0"}  # nobody is there: limits are this process's
    async with run_gateway(tmp_path, own_postgres, [node], shared_limits=shared) as gateway:
        await set_limits(gateway, **ROOM)
        node.script = talk_to_the_end
        assert (await gateway.run(ask(3))).status == 200
        await wait_for_ledger(gateway, 1)
        may_end = asyncio.Event()

        async def talk(stream: ScriptedStream) -> None:
            await stream.put(Accepted(NUM_PROMPT, 0))
            await stream.put(Delta("a", (1,)))
            await may_end.wait()
            await stream.put(Finished(FinishReason.STOP, Usage(NUM_PROMPT, 0, 4)))

        node.script = talk
        running = [asyncio.create_task(gateway.run(ask(4))) for _ in range(4)]
        await wait_until(lambda: len(node.streams) == 5)
        assert await kill_back_ends(own_postgres) > 0
        may_end.set()
        replies = await asyncio.gather(*running)
        assert [reply.status for reply in replies] == [200] * 4  # nobody waited for it
        records = await wait_for_ledger(gateway, 5)
        tokens = sorted(one.tokens.num_output for one in records)
        assert tokens == [3, 4, 4, 4, 4]
        await wait_for_sums(gateway, records)
        assert (await gateway.run(ask(4))).status == 200  # without a restart
        held = gateway.gateway._bookkeeping.parts.slices._slices
        assert not any(one.held for one in held.values())


async def kill_back_ends(url: str) -> int:
    """How many of the server's connections to a database were killed, our own aside."""
    connection: Any = await asyncpg.connect(url, timeout=30)
    query = "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
    rows = await connection.fetch(query + " AND pid <> pg_backend_pid()")
    for row in rows:
        with contextlib.suppress(ProcessLookupError):  # the server has ended it meanwhile
            os.kill(row["pid"], signal.SIGKILL)
    connection.terminate()
    return len(rows)
