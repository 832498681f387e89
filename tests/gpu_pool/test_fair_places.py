"""Places for trials: one account's many and long uses of them hold up no other's."""

import asyncio
from collections.abc import Callable

import pytest

from contracts.errors import PoolSaturated
from contracts.ids import AccountId
from gpu_pool.fair_places import FairPlaces

GREEDY, MODEST = AccountId("a" * 32), AccountId("b" * 32)


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


async def use(
    places: FairPlaces, account: AccountId, clock: Clock, seconds: float, over: list[AccountId]
) -> None:
    """Has a place for a while."""
    async with places.take(account):
        await asyncio.sleep(0)
        clock.now_s += seconds
        over.append(account)


class OneLine(FairPlaces):
    """With the defect that everybody stands in one line, in order of arrival."""

    def __init__(self, *limits: int, monotonic_s: Callable[[], float]) -> None:
        num_places, most, most_of_one = limits
        super().__init__(num_places, most, most_of_one, monotonic_s)
        self._places = asyncio.Semaphore(num_places)

    async def _wait(self, account: AccountId) -> None:
        await self._places.acquire()

    def _give_back(self, account: AccountId) -> None:
        self._places.release()


async def count_before(places: FairPlaces, clock: Clock) -> list[int]:
    """How many long uses of one account are over before each short one of another that comes
    last.
    """
    over: list[AccountId] = []
    many = [asyncio.create_task(use(places, GREEDY, clock, 2.0, over)) for _ in range(40)]
    await asyncio.sleep(0)
    few = [asyncio.create_task(use(places, MODEST, clock, 0.01, over)) for _ in range(5)]
    await asyncio.gather(*many, *few)
    return [over[:place].count(GREEDY) for place, one in enumerate(over) if one is MODEST]


async def test_few_short_uses_are_over_before_many_long_ones() -> None:
    clock = Clock()
    assert max(await count_before(FairPlaces(2, 64, 48, clock), clock)) <= 4


async def test_in_one_line_they_would_wait_for_all() -> None:
    clock = Clock()
    assert min(await count_before(OneLine(2, 64, 48, monotonic_s=clock), clock)) >= 39


async def test_one_account_leaves_room_for_others() -> None:
    places = FairPlaces(1, 6, 4, Clock(), what="schemas")
    async with places.take(GREEDY):
        waiting = [asyncio.create_task(places.take(GREEDY).__aenter__()) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(PoolSaturated, match="this account"):
            await places.take(GREEDY).__aenter__()
        waiting += [asyncio.create_task(places.take(MODEST).__aenter__()) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(PoolSaturated, match="Too many schemas are"):
            await places.take(MODEST).__aenter__()
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    assert (places._num_free, places._num_wanting, places._lines) == (1, {}, {})


async def test_whoever_leaves_as_its_turn_comes_passes_the_place_on() -> None:
    places, clock, over = FairPlaces(1, 9, 9, Clock()), Clock(), list[AccountId]()
    async with places.take(GREEDY):
        leaving = asyncio.create_task(use(places, GREEDY, clock, 0.0, over))
        staying = asyncio.create_task(use(places, MODEST, clock, 0.0, over))
        await asyncio.sleep(0)
    leaving.cancel()
    staying_too = asyncio.create_task(use(places, GREEDY, clock, 0.0, over))
    await asyncio.gather(leaving, staying, staying_too, return_exceptions=True)
    assert sorted(over) == [GREEDY, MODEST]
    assert (places._num_free, places._num_wanting, places._lines) == (1, {}, {})


async def leave_and_free(places: FairPlaces) -> None:
    """Somebody leaves the line, and is not told so yet when the place becomes free."""
    began_s = await places.acquire(GREEDY)
    leaving = asyncio.create_task(places.acquire(MODEST))
    await asyncio.sleep(0)
    leaving.cancel()
    places.release(GREEDY, began_s)
    await asyncio.gather(leaving, return_exceptions=True)


async def test_a_place_is_not_lost_on_who_is_leaving() -> None:
    places = FairPlaces(1, 9, 9, Clock())
    await leave_and_free(places)
    async with asyncio.timeout(30), places.take(GREEDY):
        pass
    assert (places._num_free, places._num_wanting, places._lines) == (1, {}, {})
    assert not places._num_held


async def test_a_turn_that_is_cancelled_in_line_takes_the_place_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The control: waited for without a shield, it is cancelled before its owner is told."""

    async def wait(turn: asyncio.Future[None]) -> None:
        await turn

    monkeypatch.setattr(asyncio, "shield", wait)
    places = FairPlaces(1, 9, 9, Clock())
    with pytest.raises(asyncio.InvalidStateError):
        await leave_and_free(places)
    assert places._num_free == 0
