"""What a real engine finds again of a prompt stands in the ledger row to the token, and costs less.

A gateway before one node process: its core counts what it has found, the gateway charges for it.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

import pytest
from tokenizers import Tokenizer

from contracts.ids import ModelName
from contracts.pricing import Price, TokenCounts, compute_charge, find_price
from contracts.usage import UsageRecord
from migrations.upgrade import upgrade_database
from tests.fixtures.fleet_node import create_fleet_node
from tests.fixtures.random_checkpoint import write_random_checkpoint
from tests.gateway.running_gateway import RunningGateway, Tenant, run_gateway, wait_until_async
from tests.gateway.test_money import list_records, wait_for_records

pytestmark = pytest.mark.timeout(300)

MODEL: Final = ModelName("@hearth/tests/random-llama")
BLOCK_SIZE: Final = 16
NUM_REQUESTS: Final = 32
NUM_OUTPUT: Final = 2
SYSTEM_PROMPT: Final = " ".join(f"{number * 7919 % 997}" for number in range(340))
"""More than a thousand tokens."""


def write_prompt(number: int) -> str:
    """The system prompt, and something of the request's own."""
    return f"{SYSTEM_PROMPT} {chr(ord('A') + number % 26)}{number} " + "and so on " * (number % 5)


@asynccontextmanager
async def run_one_node(folder: Path) -> AsyncGenerator[RunningGateway]:
    """A gateway whose node serves."""
    checkpoint = write_random_checkpoint(folder / "checkpoint")
    template = folder / "template.db"
    await asyncio.to_thread(upgrade_database, f"sqlite+aiosqlite:///{template}")
    settings = f"""[[models]]
name = "{MODEL}"
path = "{checkpoint}"
[engine]
block_size = {BLOCK_SIZE}
kv_bytes = 67108864
num_threads = 1
"""
    node = create_fleet_node(folder, "node", ("cli", "node"), settings)
    node.start()
    try:
        async with run_gateway(folder, template, [node], is_awaited=False) as gateway:
            await wait_until_async(lambda: is_ready(gateway), timeout_s=120)
            yield gateway
    finally:
        node.reap()


async def is_ready(gateway: RunningGateway) -> bool:
    """True when the node serves."""
    return (await gateway.send("GET", "/health/ready", api_token=None)).status == 200


async def ask(gateway: RunningGateway, prompt: str, tenant: Tenant | None = None) -> str:
    """The number of a request that has been answered whole."""
    form: dict[str, Any] = {"prompt": prompt, "raw": True, "temperature": 0}
    form |= {"max_tokens": NUM_OUTPUT, "ignore_eos": True}
    reply = await gateway.run(form, MODEL, tenant)
    assert reply.status == 200, reply.body
    return reply.headers["x-request-id"]


async def has_row(gateway: RunningGateway, tenant: Tenant) -> bool:
    """True when the ledger has something of an account."""
    return bool(await list_records(gateway, tenant))


def count_shared(first: list[int], second: list[int]) -> int:
    """Tokens of the whole blocks with which both begin."""
    alike = takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))
    return sum(1 for _ in alike) // BLOCK_SIZE * BLOCK_SIZE


def check_charge(record: UsageRecord, price: Price) -> None:
    """The row costs what its tokens cost, and less than without the cache if any were cached."""
    tokens = record.tokens
    assert record.cost_nano == compute_charge(price, tokens).cost_nano
    num_prompt = tokens.num_uncached + tokens.num_cached
    in_full = compute_charge(price, TokenCounts(num_prompt, 0, tokens.num_output, 0)).cost_nano
    saved = tokens.num_cached * (price.money.uncached - price.money.cached) // 10**6
    assert abs(in_full - record.cost_nano - saved) <= 1
    assert (record.cost_nano < in_full) == (tokens.num_cached > 0)


async def test_every_row_has_the_tokens_that_were_found_and_is_discounted_by_them(
    tmp_path: Path,
) -> None:
    async with run_one_node(tmp_path) as gateway:
        tokenizer = Tokenizer.from_file(str(tmp_path / "checkpoint" / "tokenizer.json"))
        prompts = [write_prompt(number) for number in range(NUM_REQUESTS + 1)]
        ids: list[list[int]] = [tokenizer.encode(prompt).ids for prompt in prompts]
        shared = [count_shared(ids[0], own) for own in ids[1:]]
        assert min(shared) >= 1000

        stranger = await gateway.add_tenant()
        first = await ask(gateway, prompts[0])
        others = await asyncio.gather(*(ask(gateway, prompt) for prompt in prompts[1:]))
        foreign = await ask(gateway, prompts[1], stranger)

        rows = {row.request_id: row for row in await wait_for_records(gateway, NUM_REQUESTS + 1)}
        price = find_price(await gateway.tenancy.list_prices(), MODEL)
        assert price is not None
        assert price.money.cached < price.money.uncached
        assert rows[first].tokens == TokenCounts(len(ids[0]), 0, NUM_OUTPUT, 0)
        for request_id, own, num_shared in zip(others, ids[1:], shared, strict=True):
            expected = TokenCounts(len(own) - num_shared, num_shared, NUM_OUTPUT, 0)
            assert rows[request_id].tokens == expected
        for row in rows.values():
            check_charge(row, price)

        await wait_until_async(lambda: has_row(gateway, stranger))
        (of_stranger,) = await list_records(gateway, stranger)
        assert of_stranger.request_id == foreign  # the control: the same prompt, found by nobody
        assert of_stranger.tokens == TokenCounts(len(ids[1]), 0, NUM_OUTPUT, 0)
        assert of_stranger.cost_nano > 2 * rows[others[0]].cost_nano
