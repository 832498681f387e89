"""Many streams at once: same text as alone, freed when clients leave, caches apart."""

import asyncio
import secrets
from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.account_client import AccountClient, read_cached_tokens
from tests.integration.running_dev import RunningDev, wait_until

RecordProperty = Callable[[str, object], None]
NUM_STREAMS = 64
NUM_PROMPTS = 32
SUBJECTS = ("Hearth", "A gateway", "A node", "A prefix cache", "An account", "A quota", "A region")


def create_prompts(num_prompts: int) -> list[str]:
    """Prompts that differ in length and content."""
    return [
        f"{SUBJECTS[number % len(SUBJECTS)]} is " + "very " * (number % 9) + f"{number}"
        for number in range(num_prompts)
    ]


async def test_sixty_four_streams_say_what_each_says_alone(account: AccountClient) -> None:
    # Continued as they stand (`raw`) and past their end: the answers differ from prompt to prompt.
    options = {"max_tokens": 12, "raw": True, "ignore_eos": True}
    prompts = create_prompts(NUM_PROMPTS)
    alone = [(await account.run(prompt, **options))["response"] for prompt in prompts]
    together = await asyncio.gather(
        *(account.stream_text(prompt, **options) for prompt in prompts * 2)
    )
    assert len(together) == NUM_STREAMS
    assert together == alone * 2
    assert len(set(alone)) > NUM_PROMPTS // 2  # the control: it is not one constant answer


@pytest.mark.parametrize("round_number", range(2))
async def test_streams_whose_clients_leave_free_everything_within_a_second(
    dev: RunningDev, account: AccountClient, round_number: int, record_property: RecordProperty
) -> None:
    num_blocks = dev.read_load()["num_blocks"]
    half_way = asyncio.Barrier(NUM_STREAMS + 1)

    async def leave_half_way(prompt: str) -> None:
        num_events = 0
        async for event in account.stream(prompt, max_tokens=2000, ignore_eos=True):
            assert "closed" not in event
            num_events += 1
            if num_events == 3:
                await half_way.wait()
                await half_way.wait()
                return  # closes the connection

    streams = [asyncio.create_task(leave_half_way(p)) for p in create_prompts(NUM_STREAMS)]
    await half_way.wait()
    # All are in the middle of their answers: the control for what follows.
    await asyncio.to_thread(wait_for_running, dev, NUM_STREAMS)
    await half_way.wait()
    await asyncio.gather(*streams)
    freed_s = await asyncio.to_thread(
        wait_until,
        lambda: is_idle(dev.read_load(), num_blocks),
        # Promised within 1 s, and a node that has become idle says so at once; machines are slow.
        10,
        lambda: str(dev.read_load()),
    )
    record_property(f"freed_{round_number}_s", freed_s)


def is_idle(load: dict[str, Any], num_blocks: int) -> bool:
    """True when nothing runs or waits and every block is free."""
    return (load["num_running"], load["num_waiting"], load["num_free_blocks"]) == (0, 0, num_blocks)


def wait_for_running(dev: RunningDev, num_running: int) -> None:
    """Returns when so many sequences run."""
    wait_until(
        lambda: dev.read_load()["num_running"] == num_running, 10, lambda: str(dev.read_load())
    )


async def test_an_account_finds_its_own_prefix_in_the_cache_and_no_other_does(
    account: AccountClient, other_account: AccountClient
) -> None:
    # New at every run, and long enough for several blocks.
    prompt = f"{secrets.token_hex(8)} " + "The quick brown fox jumps over the lazy dog. " * 12
    options = {"max_tokens": 4}
    first = await account.run(prompt, **options)
    foreign = await other_account.run(prompt, **options)
    repeated = await account.run(prompt, **options)
    own = await other_account.run(prompt, **options)

    assert read_cached_tokens(first["usage"]) == 0
    assert read_cached_tokens(foreign["usage"]) == 0
    assert read_cached_tokens(repeated["usage"]) > 0  # the controls: the cache does work,
    assert read_cached_tokens(own["usage"]) > 0  # for either of them
    assert repeated["response"] == first["response"] == foreign["response"]


async def test_a_stream_ends_with_its_usage_and_the_end_mark(account: AccountClient) -> None:
    lines: list[str] = []
    body = {"prompt": "Hello", "stream": True, "max_tokens": 8}
    async with account.http.stream("POST", "run/@hearth/tiny-chat", json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line async for line in response.aiter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    assert '"usage"' in lines[-2]
    assert all(line.startswith("data: ") for line in lines)
