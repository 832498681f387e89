"""A process that writes to the ledger, or adds up its sums, for a while: one of several.

`python -m tests.tenancy.ledger_writer URL NUMBER SECONDS`; NUMBER 0 adds up. Prints how many
records the ledger took from it. A writer's batches have the records of its neighbour's, too, in an
order of their own, and keys that all writers share.
"""

import asyncio
import secrets
import sys
import time
from random import Random

from contracts.ids import AccountId, ApiTokenId, GatewayId, ModelName, NodeId, RegionId
from contracts.ids import create_request_id as create_id
from contracts.pricing import TokenCounts
from contracts.usage import MS_PER_DAY, Outcome, UsageRecord
from tenancy.directory import SqlTenancy, create_tenancy
from tenancy.encryption.key_ring import create_key_ring

ACCOUNTS = tuple([AccountId(letter * 32) for letter in "abc"])
MODELS = tuple([ModelName(f"@hearth/model-{number}") for number in range(4)])
TOKENS = tuple([ApiTokenId(str(number) * 32) for number in range(3)])
DAY = 19_675
NUM_WRITERS = 8
BATCH = 40


def create_record(number: int) -> UsageRecord:
    """The same record for the same number, whoever writes it."""
    random = Random(number)
    unix_ms = DAY * MS_PER_DAY + random.randrange(2 * MS_PER_DAY)
    return UsageRecord(
        create_id(unix_ms, number),
        random.choice(ACCOUNTS),
        random.choice(TOKENS),
        random.choice(MODELS),
        NodeId("node-1"),
        RegionId("weur"),
        GatewayId("gateway-1"),
        unix_ms + 1500,
        Outcome.COMPLETE,
        TokenCounts(*[random.randrange(100) for _ in range(4)]),
        1,
        random.randrange(1000),
        random.randrange(1000),
    )


async def write(tenancy: SqlTenancy, number: int, until_s: float) -> int:
    """Adds batches until then; how many records were new."""
    random, num_new, batch = Random(number), 0, 0
    while time.monotonic() < until_s:
        own, next_one = number - 1, number % NUM_WRITERS
        numbers = [
            (batch * NUM_WRITERS + writer) * BATCH + i
            for writer in (own, next_one)
            for i in range(BATCH)
        ]
        random.shuffle(numbers)
        records = [create_record(one) for one in numbers]
        num_new += await tenancy.append_usage(records, f"gateway-{number}")
        batch += 1
    return num_new


async def add_up(tenancy: SqlTenancy, until_s: float) -> int:
    """Adds sums up until then."""
    while time.monotonic() < until_s:
        await tenancy.roll_up_usage()
        await asyncio.sleep(0.01)
    return 0


async def main(url: str, number: int, seconds: float) -> None:
    """Prints the number of new records."""
    tenancy = create_tenancy(
        url, create_key_ring(secrets.token_bytes), time.time, secrets.token_bytes
    )
    until_s = time.monotonic() + seconds
    work = write(tenancy, number, until_s) if number else add_up(tenancy, until_s)
    sys.stdout.write(f"{await work}\n")
    await tenancy.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
