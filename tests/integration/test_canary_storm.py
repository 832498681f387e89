"""Thousands of requests of two dozen accounts over HTTP: none is told another's secret.

The model says nothing but secrets of its own context (`canary_llama`), so every word of an answer
tells whose prompt it is from, wherever on the way to the engine cores and back it may have got into
wrong hands: streams and their ids, batches, retries, continuations, caches, answers kept by a key.
Storms through a fleet with one defect show that the test would see it.
"""

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Final

import pytest

from contracts.usage import MS_PER_DAY, UsageRecord
from tests.fixtures import crossed_streams
from tests.fixtures.fleet_node import FleetNode
from tests.fixtures.redis_server import needs_redis, run_redis
from tests.gateway.running_gateway import wait_until_async
from tests.integration.canary_answers import count_cached_tokens
from tests.integration.canary_checkpoint import write_canary_checkpoint
from tests.integration.canary_requests import NUM_ACCOUNTS, NUM_ITEMS, CanaryWriter
from tests.integration.canary_storm import (
    GATEWAYS,
    Answer,
    Findings,
    Fleet,
    Stores,
    run_fleet,
)
from tests.tenancy.postgres_server import create_database

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

NUM_FIRST: Final = 1200
"""Requests while a node is killed; the others come when it is back."""
NUM_SECOND: Final = 850
NUM_CLIENTS: Final = 300
NUM_KILLS: Final = 3
NUM_SECRETS: Final = 8192 - 64


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("canary")
    write_canary_checkpoint(path, NUM_SECRETS)
    return path


@pytest.fixture
def stores(tmp_path: Path, postgres_server: str) -> Generator[Stores]:
    """A database and a Redis."""
    with create_database(postgres_server) as url, run_redis(tmp_path) as redis:
        yield Stores(url, redis.url)


async def kill_at_work(fleet: Fleet) -> None:
    """Kills one node after the other, three times, once it has much to do, and starts it again:
    what of an answer had come when its node went is not for a test to choose.
    """
    for turn in range(NUM_KILLS):
        node = fleet.nodes[turn % 2]
        num_before = NUM_FIRST * (turn + 1) // (NUM_KILLS + 2)

        async def has_work(node: FleetNode = node, num_before: int = num_before) -> bool:
            load = await fleet.read_load(node.node_id)
            return fleet.num_answered > num_before and load.get("num_running", 0) > 4

        await wait_until_async(lambda: fleet.are_ready(2), timeout_s=120)
        await wait_until_async(has_work, timeout_s=400)
        node.signal(signal.SIGKILL)
        node.start()


@needs_redis
async def test_no_answer_of_thousands_over_http_holds_the_secret_of_another(
    tmp_path: Path, checkpoint: Path, stores: Stores
) -> None:
    writer = CanaryWriter(seed=5)
    began_day = int(time.time() * 1000) // MS_PER_DAY
    async with run_fleet(tmp_path, checkpoint, stores) as fleet:
        batches = [await fleet.hand_in(writer.write_batch()) for _ in range(NUM_ACCOUNTS)]
        first = [writer.write() for _ in range(NUM_FIRST)]
        second = [writer.write() for _ in range(NUM_SECOND)]
        assert writer.num_secrets <= NUM_SECRETS

        _, begun, *batched = await asyncio.gather(
            kill_at_work(fleet), fleet.play(first, NUM_CLIENTS), *map(fleet.fetch, batches)
        )
        await wait_until_async(lambda: fleet.are_ready(2), timeout_s=120)
        ended = await fleet.play(second, NUM_CLIENTS)

        asked = Findings([*begun.answers, *ended.answers])
        of_batches = Findings([one for each in batched for one in each.answers])
        assert asked.faults == []
        assert of_batches.faults == []
        await check_ledger(fleet, began_day, asked.answers)
        # What was to happen has happened.
        told = describe(asked)
        assert all(one.is_whole for one in of_batches.answers)
        assert asked.num_whole > 0.85 * len(asked.answers), told
        assert asked.num_left > 20, told
        assert asked.num_cached > 5 * len(asked.answers), told
        assert {one.node_id for one in ended.answers} >= {"node-0", "node-1"}
        assert await fleet.read_counter("retries") > 5
        assert await fleet.read_counter("disconnects") > 20
        loads = [await fleet.read_load(node.node_id) for node in fleet.nodes]
        assert all(load["num_preempted"] for load in loads), loads
    # Asked once all processes are over, whose logs are whole then.
    assert {one.request_id for one in asked.answers if one.is_whole} & fleet.list_resumed(), told


async def check_ledger(fleet: Fleet, began_day: int, answers: list[Answer]) -> None:
    """Every account has the rows of its own requests, with their own tokens, and none else's."""
    known = {one.request_id for one in answers}
    assert len(known) == len(answers)
    for number in range(NUM_ACCOUNTS):
        own = {one.request_id: one for one in answers if one.canary.account == number}
        wanted = {request_id for request_id, one in own.items() if one.is_whole}
        rows = await list_rows(fleet, number, began_day, wanted)
        strange = {row.request_id for row in rows} - own.keys()
        assert not strange & known
        assert len(strange) == NUM_ITEMS  # those of its batch, which clients are not told
        for row in rows:
            if row.request_id in own:
                check_row(fleet, row, own[row.request_id])


async def list_rows(
    fleet: Fleet, number: int, began_day: int, wanted: set[str]
) -> list[UsageRecord]:
    """The rows of an account, once those that are wanted are among them, and its batch's."""
    gateway = fleet.gateways[0]
    account_id = gateway.tenants[number].account_id
    rows: list[UsageRecord] = []

    async def are_there() -> bool:
        list_day = gateway.tenancy.list_usage_records
        days = [await list_day(account_id, began_day + n, limit=1000) for n in (0, 1)]
        rows[:] = [row for day in days for row in day]
        return wanted <= {row.request_id for row in rows}

    await wait_until_async(are_there, timeout_s=60)
    assert {row.account_id for row in rows} == {account_id}
    return rows


def check_row(fleet: Fleet, row: UsageRecord, answer: Answer) -> None:
    """What stands in the ledger of a request is what its client was told."""
    canary, tokens = answer.canary, row.tokens
    gateway = fleet.gateways.index(fleet.choose_gateway(canary))
    assert row.gateway_id == GATEWAYS[gateway]
    num_prompt, num_output = tokens.num_cached + tokens.num_uncached, canary.num_output_tokens
    assert num_prompt <= canary.num_prompt_tokens
    assert tokens.num_output + tokens.num_reasoning <= num_output
    if answer.is_whole:
        assert answer.said.usage is not None
        assert tokens.num_cached == count_cached_tokens(answer.said.usage)
        assert num_prompt == canary.num_prompt_tokens
        assert tokens.num_output + tokens.num_reasoning == num_output


def describe(findings: Findings) -> str:
    """In a line, for whoever looks at a failure."""
    statuses = Counter(one.status for one in findings.answers)
    errors = Counter(str(one.said.error)[:160] for one in findings.answers if one.said.error)
    return (
        f"{findings.num_whole} whole, {findings.num_left} left, {findings.num_cached} cached, "
        f"{statuses}, {errors}"
    )


@pytest.mark.parametrize("defect", list(crossed_streams.DEFECTS))
async def test_a_fleet_with_a_defect_is_seen(tmp_path: Path, checkpoint: Path, defect: str) -> None:
    writer = CanaryWriter(seed=6)
    async with run_fleet(tmp_path, checkpoint, defect=defect) as fleet:
        findings = await fleet.play([writer.write() for _ in range(150)], 60)
    assert findings.leaks, describe(findings)


async def test_a_small_storm_through_a_sound_fleet_finds_nothing(
    tmp_path: Path, checkpoint: Path
) -> None:
    """What the defects are compared with."""
    writer = CanaryWriter(seed=6)
    async with run_fleet(tmp_path, checkpoint) as fleet:
        findings = await fleet.play([writer.write() for _ in range(150)], 60)
    assert findings.faults == []
    assert findings.num_whole + findings.num_left == 150, describe(findings)
