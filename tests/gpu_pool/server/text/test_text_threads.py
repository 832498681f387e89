"""Threads for texts: one account's long ones hold up nobody else's."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from contracts.errors import InvalidRequest
from contracts.ids import AccountId
from gpu_pool.server.text.text_threads import TextThreads
from tests.fixtures.node_process import wait_until

GREEDY, MODEST, THIRD = (AccountId(letter * 32) for letter in "abc")
LONG_S = 30.0


class Held:
    """Work that takes as long as the test likes."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.num_begun = 0

    def work(self) -> str:
        self.num_begun += 1
        assert self.let_go.wait(LONG_S)
        return "long"

    async def begun(self, count: int) -> None:
        await wait_until(lambda: self.num_begun == count)


@pytest.fixture
def held() -> Iterator[Held]:
    one = Held()
    yield one
    one.let_go.set()


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as threads:
        yield threads


def ask(
    threads: TextThreads, account: AccountId, held: Held, count: int
) -> list[asyncio.Task[str]]:
    return [asyncio.create_task(threads.run(account, held.work)) for _ in range(count)]


async def test_the_last_free_thread_is_kept_from_who_has_one_at_work(
    executor: ThreadPoolExecutor, held: Held
) -> None:
    threads = TextThreads(executor, 2)
    many = ask(threads, GREEDY, held, 5)
    await held.begun(1)
    assert await asyncio.wait_for(threads.run(MODEST, len, "short"), LONG_S) == 5
    assert held.num_begun == 1
    held.let_go.set()
    assert await asyncio.gather(*many) == ["long"] * 5


async def test_by_order_of_arrival_short_ones_wait_for_all_before_them(
    executor: ThreadPoolExecutor, held: Held
) -> None:
    loop = asyncio.get_running_loop()
    many = [loop.run_in_executor(executor, held.work) for _ in range(5)]
    short = loop.run_in_executor(executor, len, "short")
    await held.begun(2)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(short), 0.1)
    held.let_go.set()
    assert await asyncio.gather(*many) == ["long"] * 5
    assert await short == 5


async def test_whose_texts_took_least_time_is_next(
    executor: ThreadPoolExecutor, held: Held
) -> None:
    now_s = 0.0
    threads, order = TextThreads(executor, 1, lambda: now_s), list[str]()
    first = ask(threads, GREEDY, held, 1)
    await held.begun(1)
    last = [asyncio.create_task(threads.run(GREEDY, order.append, "greedy")) for _ in range(2)]
    await asyncio.sleep(0)
    other = [asyncio.create_task(threads.run(MODEST, order.append, "modest")) for _ in range(2)]
    await asyncio.sleep(0)
    now_s = 5.0
    held.let_go.set()
    await asyncio.gather(*first, *last, *other)
    assert order == ["modest", "modest", "greedy", "greedy"]


async def test_who_leaves_in_line_costs_nobody_a_thread_and_later_keeps_it(
    executor: ThreadPoolExecutor, held: Held
) -> None:
    threads = TextThreads(executor, 2)
    first, second = ask(threads, GREEDY, held, 2)
    await held.begun(1)
    for task in (first, second):
        task.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    another = ask(threads, GREEDY, held, 1)
    assert await threads.run(MODEST, len, "short") == 5
    assert held.num_begun == 1, "the work that nobody waits for has a thread until it is done"
    held.let_go.set()
    assert await asyncio.gather(*another) == ["long"]
    assert held.num_begun == 2
    assert await threads.run(THIRD, len, "any") == 3


async def test_what_fails_fails_for_its_caller_alone(executor: ThreadPoolExecutor) -> None:
    threads = TextThreads(executor, 2)

    def refuse() -> None:
        raise InvalidRequest("No.")

    with pytest.raises(InvalidRequest):
        await threads.run(GREEDY, refuse)
    assert await threads.run(GREEDY, len, "next") == 4


async def test_threads_that_take_no_work_any_more_leave_nobody_waiting() -> None:
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    threads = TextThreads(executor, 1)
    for account in (GREEDY, MODEST):
        with pytest.raises(RuntimeError, match="shutdown"):
            await asyncio.wait_for(threads.run(account, len, "text"), LONG_S)
