"""Who needs the room of several models while these are asked for without a pause."""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import pytest
from hypothesis import given

from contracts.errors import ModelCold
from contracts.ids import ModelName
from contracts.placement import Tier
from gpu_pool.server.placement.books import PlacementBooks
from gpu_pool.server.placement.keeper import PlacementKeeper
from gpu_pool.server.placement.model_size import ModelSize
from gpu_pool.server.placement.room import (
    MemoryBudget,
    Move,
    Room,
    Standing,
    find_room,
    find_room_beside,
)
from tests.fixtures.node_process import wait_until
from tests.gpu_pool.server.placement.moving_model import MovingModel
from tests.gpu_pool.server.placement.situations import Situation, situations

TURN_S = 0.02
A, B, C, D = (ModelName(f"@test/{letter}") for letter in "abcd")


def create_keeper(device: int) -> PlacementKeeper:
    return PlacementKeeper(MemoryBudget(device, 200), TURN_S, time.monotonic, lambda: None)


@asynccontextmanager
async def steady_traffic(models: list[MovingModel]) -> AsyncIterator[None]:
    """Two clients a model, each of which asks again as soon as it has its answer."""
    chance = random.Random(1)

    async def ask_for_ever(model: MovingModel) -> None:
        while True:
            await model.ask()
            await asyncio.sleep(0.01 + chance.random() * 0.02)
            model.last_used_unix_ms += 1
            model.end()

    clients = [asyncio.create_task(ask_for_ever(model)) for model in models for _ in range(2)]
    try:
        await asyncio.sleep(5 * TURN_S)
        yield
    finally:
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)


@pytest.mark.parametrize("num_small", [4, 8])
async def test_a_large_model_comes_under_steady_traffic_for_small_ones(num_small: int) -> None:
    keeper = create_keeper(30)
    small = [MovingModel(keeper, f"s{place}") for place in range(num_small)]
    large = MovingModel(keeper, "large", ModelSize(30, 0))
    async with steady_traffic(small):
        await asyncio.wait_for(large.ask(), 20)
        large.end()
        moves = [len(model.moves) for model in small]
        await wait_until(lambda: all(len(m.moves) > n for m, n in zip(small, moves, strict=True)))
    await keeper.stop()


@pytest.mark.parametrize("are_claims_kept", [True, False])
async def test_what_leaves_for_a_claimant_is_taken_by_nobody_else(
    monkeypatch: pytest.MonkeyPatch, are_claims_kept: bool
) -> None:
    """The control knows no claims: there whoever needs less comes first, time and again."""
    if not are_claims_kept:
        monkeypatch.setattr(PlacementBooks, "claim", lambda self, newcomer: False)
    keeper = create_keeper(20)
    small = [MovingModel(keeper, f"s{place}") for place in range(12)]
    large = MovingModel(keeper, "large", ModelSize(20, 0))
    await small[0].ask()
    await small[1].ask()
    waiting = asyncio.create_task(large.ask())
    await asyncio.sleep(4 * TURN_S)
    num_overtaken = 0
    for ended, later in zip(small[:10], small[2:], strict=True):
        asking = asyncio.create_task(later.ask())
        ended.end()
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(asking), 4 * TURN_S)
        num_overtaken += asking.done()
        if waiting.done():
            break
    assert (waiting.done(), num_overtaken) == ((True, 0) if are_claims_kept else (False, 10))
    await keeper.stop()


async def test_two_large_models_come_one_after_the_other() -> None:
    keeper = create_keeper(30)
    small = [MovingModel(keeper, f"s{place}") for place in range(6)]
    large = [MovingModel(keeper, f"l{place}", ModelSize(25, 0)) for place in range(2)]
    async with steady_traffic([*small, *large]):
        await wait_until(lambda: all(model.moves.count(Tier.GPU) >= 3 for model in large))
    await keeper.stop()


async def test_a_claim_that_is_given_up_holds_nobody_back() -> None:
    keeper = create_keeper(20)
    busy, small = MovingModel(keeper, "busy"), MovingModel(keeper, "small")
    large = MovingModel(keeper, "large", ModelSize(20, 0))
    await busy.ask()
    waiting = asyncio.create_task(large.ask())
    await wait_until(lambda: keeper.books.has_claim(keeper.books.find(large.name)))
    held_back = asyncio.create_task(small.ask())
    await asyncio.sleep(4 * TURN_S)
    assert not held_back.done()
    waiting.cancel()
    await asyncio.wait_for(held_back, 5)
    assert busy.is_open
    await keeper.stop()


async def test_a_failed_claimant_holds_nobody_back() -> None:
    keeper = create_keeper(20)
    busy, small = MovingModel(keeper, "busy"), MovingModel(keeper, "small")
    large = MovingModel(keeper, "large", ModelSize(20, 0))
    large.refusals = 1
    await busy.ask()
    waiting = asyncio.create_task(large.ask())
    await wait_until(lambda: keeper.books.has_claim(keeper.books.find(large.name)))
    busy.end()
    with pytest.raises(ModelCold):
        await asyncio.wait_for(waiting, 5)
    await asyncio.wait_for(small.ask(), 5)
    await keeper.stop()


def stand(name: ModelName, tier: Tier = Tier.GPU, num: int = 10, **changes: object) -> Standing:
    return replace(Standing(name, tier, num, 0), **changes)  # type: ignore[arg-type]


def test_what_has_left_for_the_claimant_is_kept_for_it() -> None:
    claimant, newcomer = stand(C, Tier.DISK, 20), stand(D, Tier.HOST)
    standings = [stand(A, is_busy=True), claimant]
    assert find_room(standings, newcomer, MemoryBudget(20, 100)) == Room(is_there=True)
    beside = find_room_beside(standings, newcomer, claimant, MemoryBudget(20, 100))
    assert beside == Room(is_claimed=True)


def test_what_the_claimant_does_not_need_is_free() -> None:
    claimant, newcomer = stand(C, Tier.DISK, 20), stand(D, Tier.HOST)
    standings = [stand(A, num=20, is_busy=True), stand(B), claimant]
    beside = find_room_beside(standings, newcomer, claimant, MemoryBudget(30, 100))
    assert beside == Room(moves=(Move(B, Tier.HOST),))


@given(situations())
def test_whoever_comes_beside_a_claimant_puts_it_no_further_off(situation: Situation) -> None:
    others, claimant, budget = situation
    newcomer, *standings = [*others, claimant]
    if newcomer is claimant or newcomer.tier is Tier.GPU:
        return
    room = find_room_beside(standings, newcomer, claimant, budget)
    before = find_room([*others], claimant, budget)
    if not (before.is_possible and room.is_there):
        return
    arrived = replace(newcomer, tier=Tier.GPU, is_pinned=True)
    after = find_room(
        [one for one in standings if one is not claimant] + [arrived], claimant, budget
    )
    assert after.is_possible
    assert set(after.awaited) <= set(before.awaited)
    assert after.is_there or not before.is_there
