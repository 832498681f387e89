"""Models that are slow to leave, and such that do not go at all: what they hold stays taken, and
they hold up only who waits for it.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator

import pytest

from contracts.errors import ModelCold
from contracts.ids import ModelName
from contracts.placement import Tier
from gpu_pool.server.placement import keeper as keeper_module
from gpu_pool.server.placement.keeper import PlacementKeeper
from gpu_pool.server.placement.model_size import ModelSize
from gpu_pool.server.placement.room import MemoryBudget
from tests.fixtures.node_process import wait_until
from tests.gpu_pool.server.placement.moving_model import TEN_BYTES, MovingModel
from tests.gpu_pool.server.placement.test_keeper import create_plan

PATIENCE_S = 10.0
DEVICE_BYTES, HOST_BYTES = 30, 25


class SlowModel(MovingModel):
    """Leaves when it is let."""

    def __init__(self, keeper: PlacementKeeper, name: str, size: ModelSize = TEN_BYTES) -> None:
        super().__init__(keeper, name, size)
        self.goes = asyncio.Event()
        self.is_going = False

    async def move_to(self, tier: Tier) -> None:
        if tier is not Tier.GPU:
            self.is_going, self._target = True, tier
            await self.goes.wait()
        await super().move_to(tier)


@pytest.fixture
async def keeper(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PlacementKeeper]:
    """Of a device for two models of ten bytes."""
    monkeypatch.setattr(keeper_module, "_LEAVE_S", 0.02)
    keeper = PlacementKeeper(MemoryBudget(20, 100), 0.0, time.monotonic, lambda: None)
    yield keeper
    await asyncio.wait_for(keeper.stop(), PATIENCE_S)


async def bring_idle(*models: MovingModel) -> None:
    """Models on the device; the first was used longest ago."""
    for number, model in enumerate(models):
        await model.ask()
        model.last_used_unix_ms = number
        model.end()


async def test_who_needs_nothing_of_a_model_that_is_slow_to_leave_goes_on(
    keeper: PlacementKeeper,
) -> None:
    slow, large = SlowModel(keeper, "slow"), MovingModel(keeper, "large", ModelSize(15, 0))
    small = MovingModel(keeper, "small", ModelSize(5, 0))  # fits beside either
    await bring_idle(slow)
    waiting = asyncio.create_task(large.ask())
    await wait_until(lambda: slow.is_going)
    await asyncio.wait_for(small.ask(), PATIENCE_S)
    assert (slow.moves, waiting.done()) == ([Tier.GPU], False), "the control: it is there yet"
    assert keeper.books.measure().device_used_bytes == 15
    small.end()
    slow.goes.set()
    await asyncio.wait_for(waiting, PATIENCE_S)


async def test_nobody_else_leaves_for_whom_a_slow_model_makes_room(keeper: PlacementKeeper) -> None:
    slow, idle = SlowModel(keeper, "slow"), MovingModel(keeper, "idle")
    newcomer = MovingModel(keeper, "new")
    await bring_idle(slow, idle)
    waiting = asyncio.create_task(newcomer.ask())
    await wait_until(lambda: slow.is_going)
    await asyncio.sleep(0.1)
    assert (idle.moves, waiting.done()) == ([Tier.GPU], False)
    slow.goes.set()
    await asyncio.wait_for(waiting, PATIENCE_S)
    assert idle.moves == [Tier.GPU]


async def test_a_model_that_is_asked_for_while_it_leaves_slowly_comes_back(
    keeper: PlacementKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, large = SlowModel(keeper, "slow"), MovingModel(keeper, "large", ModelSize(20, 0))
    await bring_idle(slow)
    waiting = asyncio.create_task(large.ask())
    await wait_until(lambda: slow.is_going)
    await asyncio.sleep(0.1)
    bring, num_brought = keeper.bring, 0

    async def count_and_bring(name: ModelName) -> None:
        nonlocal num_brought
        num_brought += 1
        await bring(name)

    monkeypatch.setattr(keeper, "bring", count_and_bring)
    again = asyncio.create_task(slow.ask())
    await asyncio.sleep(0.1)
    assert (again.done(), num_brought) == (False, 1), "it waits, and does not ask again and again"
    slow.goes.set()
    for task, model in ((waiting, large), (again, slow)):
        await asyncio.wait_for(task, PATIENCE_S)
        model.end()
    assert slow.moves == [Tier.GPU, Tier.HOST, Tier.GPU]


async def test_a_model_found_too_large_stays_if_one_that_is_slow_to_leave_makes_room(
    keeper: PlacementKeeper,
) -> None:
    slow, grown = SlowModel(keeper, "slow"), MovingModel(keeper, "grown")
    grown.grows_to = ModelSize(15, 0)
    await bring_idle(slow)
    waiting = asyncio.create_task(grown.ask())
    await wait_until(lambda: slow.is_going)
    await asyncio.sleep(0.1)
    slow.goes.set()
    await asyncio.wait_for(waiting, PATIENCE_S)
    assert grown.moves == [Tier.GPU]


async def test_what_a_model_holds_that_does_not_go_is_nobodys_until_it_has_gone(
    keeper: PlacementKeeper,
) -> None:
    stuck, idle = MovingModel(keeper, "stuck"), MovingModel(keeper, "idle")
    large, small = MovingModel(keeper, "large", ModelSize(20, 0)), MovingModel(keeper, "small")
    await bring_idle(stuck, idle)
    stuck.will_stick = True
    with pytest.raises(ModelCold, match="no room"):
        await asyncio.wait_for(large.ask(), PATIENCE_S)
    assert stuck.is_stuck
    use = keeper.books.measure()
    assert (use.device_used_bytes, use.host_used_bytes) == (10, 20), "at both ends of its move"
    await asyncio.wait_for(small.ask(), PATIENCE_S)  # in the place of the idle one
    assert keeper.books.measure().device_used_bytes == 20
    small.end()
    with pytest.raises(ModelCold, match="not gone"):
        await asyncio.wait_for(stuck.ask(), PATIENCE_S)
    stuck.release()
    await asyncio.wait_for(large.ask(), PATIENCE_S)
    large.end()
    await asyncio.wait_for(stuck.ask(), PATIENCE_S)


async def test_a_plan_neither_waits_for_a_slow_model_nor_moves_one_that_is_stuck(
    keeper: PlacementKeeper,
) -> None:
    slow, stuck = SlowModel(keeper, "slow"), MovingModel(keeper, "stuck")
    await bring_idle(slow, stuck)
    stuck.will_stick = True
    keeper.follow(create_plan(1, slow=Tier.HOST, stuck=Tier.HOST))
    await wait_until(lambda: stuck.is_stuck)
    assert (slow.is_going, slow.tier) == (True, Tier.GPU)
    keeper.follow(create_plan(2, stuck=Tier.DISK))
    slow.goes.set()
    await wait_until(lambda: slow.tier is Tier.HOST)
    assert stuck.num_vain == 0
    stuck.release()
    await wait_until(lambda: stuck.tier is Tier.DISK)


@pytest.mark.parametrize("seed", range(6))
async def test_in_a_storm_of_slow_and_stuck_models_the_memory_holds_and_every_wait_ends(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper_module, "_LEAVE_S", 0.002)
    chance = random.Random(seed)
    budget = MemoryBudget(DEVICE_BYTES, HOST_BYTES)
    keeper = PlacementKeeper(budget, 0.002, time.monotonic, lambda: None)
    models = [
        MovingModel(
            keeper,
            f"m{number}",
            ModelSize(chance.randint(3, 9), chance.randint(0, 3)),
            move_s=lambda: chance.choice((0.0, 0.001, 0.02)),
        )
        for number in range(10)
    ]
    ends = {"served": 0, "refused": 0, "stuck": 0}

    async def ask_again_and_again() -> None:
        for _ in range(20):
            model = chance.choice(models)
            model.will_stick = chance.random() < 0.1
            try:
                await model.ask()
            except ModelCold:
                ends["refused"] += 1
                await asyncio.sleep(0.002)
                continue
            await asyncio.sleep(chance.random() * 0.003)
            model.last_used_unix_ms += 1
            model.end()
            ends["served"] += 1

    async def watch() -> None:
        while True:
            use = keeper.books.measure()
            assert use.device_used_bytes <= DEVICE_BYTES
            assert use.host_used_bytes <= HOST_BYTES
            there = (m.size.weights_bytes + m.size.kv_bytes for m in models if m.tier is Tier.GPU)
            assert sum(there) <= use.device_used_bytes, "nothing that is there is left out"
            await asyncio.sleep(0)

    async def release_later() -> None:
        while True:
            await asyncio.sleep(0.01)
            for model in models:
                if model.is_stuck and chance.random() < 0.3:
                    ends["stuck"] += 1
                    model.release()

    beside = [asyncio.create_task(watch()), asyncio.create_task(release_later())]
    await asyncio.wait_for(asyncio.gather(*(ask_again_and_again() for _ in range(12))), 60)
    for model in models:
        model.will_stick = False
    await wait_until(lambda: not any(model.is_stuck for model in models))
    for model in models:  # nothing has been lost
        await asyncio.wait_for(model.ask(), PATIENCE_S)
        model.end()
    assert not any(task.done() for task in beside)
    for task in beside:
        task.cancel()
    assert sum(model.num_vain for model in models) == 0
    assert ends["served"] > 50
    assert ends["stuck"] > 0
