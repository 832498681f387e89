"""Many processes write to one ledger while others add it up: nothing is lost, nothing counts twice.

Longer with HEARTH_TEST_WRITERS_S=120.
"""

import asyncio
import os
import sys
from collections import Counter
from pathlib import Path

import pytest

from contracts.usage import Step, UsageRecord
from tests.fixtures.acting_tenancy import ActingTenancy
from tests.tenancy.ledger_writer import ACCOUNTS, DAY, NUM_WRITERS

ROOT = Path(__file__).parents[2]
SECONDS = float(os.environ.get("HEARTH_TEST_WRITERS_S", "2"))
NUM_ADDERS = 2

Sums = Counter[tuple[str, str, str, str]]


async def run_writers(url: str) -> int:
    """How many records all of them say were new. Raises: `AssertionError` when one fails."""
    command = [sys.executable, "-m", "tests.tenancy.ledger_writer", url]
    pipe = asyncio.subprocess.PIPE
    numbers = [0] * NUM_ADDERS + list(range(1, NUM_WRITERS + 1))
    processes = [
        await asyncio.create_subprocess_exec(
            *command, str(number), str(SECONDS), cwd=ROOT, stdout=pipe, stderr=pipe
        )
        for number in numbers
    ]
    told = await asyncio.gather(*[process.communicate() for process in processes])
    for process, (_, error) in zip(processes, told, strict=True):
        assert process.returncode == 0, error.decode()
    return sum(int(output) for output, _ in told)


def sum_up(records: list[UsageRecord]) -> Sums:
    """What totals by day should be."""
    sums: Sums = Counter()
    for one in records:
        key = (one.account_id, one.model, one.api_token_id)
        sums[(*key, "requests")] += 1
        sums[(*key, "cost")] += one.cost_nano
        sums[(*key, "output")] += one.tokens.num_output
    return sums


async def read_ledger(tenancy: ActingTenancy) -> list[UsageRecord]:
    """All records."""
    found: list[UsageRecord] = []
    for account in ACCOUNTS:
        for day in (DAY, DAY + 1):
            after = None
            while page := await tenancy.list_usage_records(account, day, limit=1000, after=after):
                found += page
                after = page[-1].request_id
    return found


async def read_totals(tenancy: ActingTenancy, step: Step) -> Sums:
    """What the totals say, of both days."""
    scale = 24 if step is Step.HOUR else 1
    sums: Sums = Counter()
    for account in ACCOUNTS:
        for total in await tenancy.list_usage(
            account, step, DAY * scale, (DAY + 2) * scale, limit=1000
        ):
            key = (account, total.model, total.api_token_id)
            sums[(*key, "requests")] += total.num_requests
            sums[(*key, "cost")] += total.cost_nano
            sums[(*key, "output")] += total.tokens.num_output
    return sums


@pytest.mark.timeout(90 + 4 * SECONDS)
async def test_eight_processes_and_two_that_add_up_lose_nothing(
    database_url: str, tenancy: ActingTenancy
) -> None:
    num_new = await run_writers(database_url)
    while await tenancy.roll_up_usage():
        pass
    records = await read_ledger(tenancy)
    assert len(records) == len({one.request_id for one in records}) == num_new
    assert num_new > NUM_WRITERS * 40
    expected = sum_up(records)
    assert await read_totals(tenancy, Step.DAY) == expected
    assert await read_totals(tenancy, Step.HOUR) == expected
    # The control: one record that is not in the sums is seen.
    assert sum_up(records[1:]) != expected
