"""Answers by key: what is given again, what is forgotten, and how much memory that takes."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import Conflict, InvalidRequest
from contracts.ids import AccountId, RegionId
from gateway.answer_memory import AnswerMemory, Claim, KeptAnswer
from gateway.settings import IdempotencySettings

A, B = AccountId("a" * 32), AccountId("b" * 32)
ANSWER = b"answer", RegionId("weur")


class Clock:
    """A time that tests set."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def create_memory(clock: Clock | None = None, **settings: float) -> AnswerMemory:
    """An empty memory."""
    return AnswerMemory(IdempotencySettings(**settings), clock or Clock())  # type: ignore[arg-type]


async def claim(memory: AnswerMemory, key: bytes, body: bytes = b"{}", account: AccountId = A):
    """The right to run a request that nobody has sent before."""
    claimed = await memory.claim(account, key, body)
    assert isinstance(claimed, Claim)
    return claimed


async def test_an_answer_is_given_again_to_its_key_and_account_only() -> None:
    memory = create_memory()
    (await claim(memory, b"k")).keep(*ANSWER)
    assert await memory.claim(A, b"k", b"{}") == KeptAnswer(*ANSWER)
    await claim(memory, b"other")
    await claim(memory, b"k", account=B)


async def test_a_key_that_comes_with_another_request_is_refused() -> None:
    memory = create_memory()
    (await claim(memory, b"k")).keep(*ANSWER)
    with pytest.raises(InvalidRequest, match="another request"):
        await memory.claim(A, b"k", b'{"a":1}')


async def test_parts_of_a_request_do_not_flow_into_each_other() -> None:
    memory = create_memory()
    first = await memory.claim(A, b"k", b"ab", b"c")
    assert isinstance(first, Claim)
    with pytest.raises(InvalidRequest):
        await memory.claim(A, b"k", b"a", b"bc")


@pytest.mark.parametrize("key", [b"", b"x" * 256])
async def test_a_key_has_a_sensible_length(key: bytes) -> None:
    with pytest.raises(InvalidRequest):
        await create_memory().claim(A, key, b"{}")


async def test_whoever_asks_meanwhile_waits_for_the_answer() -> None:
    memory = create_memory()
    running = await claim(memory, b"k")
    waiting = [asyncio.create_task(memory.claim(A, b"k", b"{}")) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    running.keep(*ANSWER)
    assert await asyncio.gather(*waiting) == [KeptAnswer(*ANSWER)] * 3


async def test_when_it_comes_to_nothing_one_of_those_who_wait_may_try() -> None:
    memory = create_memory()
    running = await claim(memory, b"k")
    waiting = [asyncio.create_task(memory.claim(A, b"k", b"{}")) for _ in range(2)]
    await asyncio.sleep(0)
    running.forget()
    (first,), rest = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    second = first.result()
    assert isinstance(second, Claim)
    second.keep(*ANSWER)
    assert [await task for task in rest] == [KeptAnswer(*ANSWER)]


async def test_a_waiter_that_leaves_takes_nobody_with_it() -> None:
    memory = create_memory()
    running = await claim(memory, b"k")
    leaving, staying = (asyncio.create_task(memory.claim(A, b"k", b"{}")) for _ in range(2))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    running.keep(*ANSWER)
    assert await staying == KeptAnswer(*ANSWER)


async def test_a_stream_that_was_given_is_not_run_again() -> None:
    memory = create_memory()
    (await claim(memory, b"k")).spend()
    with pytest.raises(Conflict):
        await memory.claim(A, b"k", b"{}")


async def test_only_the_first_word_on_a_claim_counts() -> None:
    memory = create_memory()
    kept = await claim(memory, b"k")
    kept.keep(*ANSWER)
    kept.forget()
    assert await memory.claim(A, b"k", b"{}") == KeptAnswer(*ANSWER)


async def test_an_answer_is_forgotten_in_time() -> None:
    clock = Clock()
    memory = create_memory(clock, ttl_s=10)
    (await claim(memory, b"k")).keep(*ANSWER)
    clock.now_s += 9
    assert await memory.claim(A, b"k", b"{}") == KeptAnswer(*ANSWER)
    clock.now_s += 2
    await claim(memory, b"k")
    assert memory.num_bytes == 0


async def test_an_answer_that_is_too_long_to_keep_is_not_run_again_either() -> None:
    memory = create_memory(max_bytes_per_account=5)
    (await claim(memory, b"k")).keep(*ANSWER)
    with pytest.raises(Conflict):
        await memory.claim(A, b"k", b"{}")


async def test_an_account_pushes_out_its_own_oldest_and_nobody_elses() -> None:
    memory = create_memory(max_keys_per_account=2)
    (await claim(memory, b"theirs", account=B)).keep(*ANSWER)
    for key in (b"1", b"2", b"3"):
        (await claim(memory, key)).keep(*ANSWER)
    assert await memory.claim(B, b"theirs", b"{}") == KeptAnswer(*ANSWER)
    assert await memory.claim(A, b"3", b"{}") == KeptAnswer(*ANSWER)
    await claim(memory, b"1")


@given(
    st.lists(st.tuples(st.sampled_from([A, B]), st.integers(0, 9), st.integers(0, 40)), max_size=60)
)
def test_memory_stays_within_its_bounds_whatever_is_kept(
    steps: list[tuple[AccountId, int, int]],
) -> None:
    async def run() -> None:
        memory = create_memory(max_bytes_per_account=50, max_bytes=70, max_keys_per_account=4)
        for account, key, size in steps:
            try:
                claimed = await memory.claim(account, b"%d" % key, b"{}")
            except Conflict:
                continue
            if isinstance(claimed, Claim):
                claimed.keep(b"x" * size, None)
            kept = [
                len(entry.answer.body)
                for held in memory._accounts.values()
                for entry in held.entries.values()
                if entry.answer is not None
            ]
            assert memory.num_bytes == sum(kept) <= 70
            assert all(held.num_bytes <= 50 for held in memory._accounts.values())
            assert all(0 < len(held.entries) <= 4 for held in memory._accounts.values())

    asyncio.run(run())
