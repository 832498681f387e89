"""Storms over models of which several need most of the device: everybody is served, whatever fails.

Tenants who leave, models that do not start, that turn out larger than their files or lose them,
plans and pins that come in the middle: no claim outlives who made it.
"""

import asyncio
import random
import time

import pytest

from contracts.errors import ServiceError
from contracts.ids import BootId, ModelName, NodeId
from contracts.placement import PlacementPlan, PlacementTarget, Tier
from gpu_pool.server.placement.keeper import PlacementKeeper
from gpu_pool.server.placement.model_size import ModelSize
from gpu_pool.server.placement.room import MemoryBudget
from tests.gpu_pool.server.placement.moving_model import MovingModel

TURN_S = 0.02
DEVICE, HOST = 30, 40
GROWTH = 5
BOUND_S = 20.0
"""Hundreds of turns: who waits for so long waits for ever."""


def create_models(chance: random.Random, keeper: PlacementKeeper) -> list[MovingModel]:
    """Four that need most of the device, six that need a part of it."""
    sizes = [chance.randint(24, 30) for _ in range(4)] + [chance.randint(4, 12) for _ in range(6)]
    return [
        MovingModel(keeper, f"m{n}", ModelSize(size, 0), move_s=lambda: chance.random() * 0.004)
        for n, size in enumerate(sizes)
    ]


def create_plan(
    number: int, targets: tuple[PlacementTarget, ...] = (), order: tuple[ModelName, ...] = ()
) -> PlacementPlan:
    """A plan for this node."""
    return PlacementPlan(
        node_id=NodeId("n"),
        boot_id=BootId("b"),
        number=number,
        targets=targets,
        eviction_order=order,
    )


def draw_plan(chance: random.Random, number: int, models: list[MovingModel]) -> PlacementPlan:
    """A few wishes, one pin of something small at times."""
    names = [model.name for model in models]
    small = [model for model in models if model.size.weights_bytes <= 6]
    targets = [
        PlacementTarget(name=ModelName(name), tier=chance.choice([Tier.GPU, Tier.HOST, Tier.DISK]))
        for name in chance.sample(names, 3)
    ]
    if small and chance.random() < 0.2:
        pin = PlacementTarget(name=chance.choice(small).name, tier=Tier.GPU, is_pinned=True)
        targets.append(pin)
    order = tuple(chance.sample(names, len(names)))
    return create_plan(number, tuple(targets), order)


@pytest.mark.parametrize("seed", range(8))
async def test_in_a_storm_of_large_models_everybody_is_served_in_bounded_time(seed: int) -> None:
    chance = random.Random(seed)
    keeper = PlacementKeeper(MemoryBudget(DEVICE, HOST), TURN_S, time.monotonic, lambda: None)
    models = create_models(chance, keeper)
    waits: list[float] = []
    end_s = time.monotonic() + 4

    async def ask(model: MovingModel) -> None:
        if chance.random() < 0.03:
            model.refusals = 1
        if chance.random() < 0.03 and model.size.weights_bytes < DEVICE:  # larger than its files
            model.grows_to = ModelSize(min(model.size.weights_bytes + GROWTH, DEVICE), 0)
        began_s = time.monotonic()
        try:
            if chance.random() < 0.15:  # a tenant who leaves while others make room
                async with asyncio.timeout(chance.random() * 6 * TURN_S):
                    await model.ask()
            else:
                async with asyncio.timeout(BOUND_S):
                    await model.ask()
                waits.append(time.monotonic() - began_s)
        except TimeoutError:
            assert time.monotonic() - began_s < BOUND_S, f"{model.name} was never served"
            return
        except ServiceError:
            await asyncio.sleep(0.001)
            return
        await asyncio.sleep(chance.random() * 0.03)
        model.last_used_unix_ms += 1
        model.end()

    async def ask_for_ever() -> None:
        while time.monotonic() < end_s:
            await ask(chance.choice(models))

    async def plan_for_ever() -> None:
        number = 0
        while time.monotonic() < end_s:
            number += 1
            keeper.follow(draw_plan(chance, number, models))
            await asyncio.sleep(chance.random() * 0.1)
        keeper.follow(create_plan(number + 1))

    async def watch() -> None:
        while True:
            use = keeper.books.measure()
            arriving = [kept for kept in keeper.books if kept.is_awaited]
            more = sum(kept.model.tier is Tier.GPU for kept in arriving)  # found larger, maybe
            assert use.device_used_bytes <= DEVICE + GROWTH * more
            assert use.host_used_bytes <= HOST
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    await asyncio.gather(plan_for_ever(), *(ask_for_ever() for _ in range(24)))
    assert not watching.done()
    watching.cancel()
    assert len(waits) > 100
    for model in models:
        model.refusals = 0
    for model in models:  # nothing of all this holds anybody back
        await asyncio.wait_for(model.ask(), BOUND_S)
        model.end()
    assert not any(model.num_held or model.num_waiting for model in models)
    await keeper.stop()
