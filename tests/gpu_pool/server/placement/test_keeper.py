"""The keeper over models that move at once: turns, room, plans, and storms of requests."""

import asyncio
import random
import time

import pytest

from contracts.errors import ModelCold, ModelFailed
from contracts.ids import BootId, ModelName, NodeId
from contracts.placement import PlacementPlan, PlacementTarget, ServiceClass, Tier
from gpu_pool.server.placement.keeper import PlacementKeeper
from gpu_pool.server.placement.model_size import ModelSize
from gpu_pool.server.placement.room import MemoryBudget
from tests.fixtures.node_process import wait_until
from tests.gpu_pool.server.placement.moving_model import MovingModel

LONG_S = 3600.0


def create_keeper(device: int, host: int = 100, turn_s: float = 0.0) -> PlacementKeeper:
    return PlacementKeeper(MemoryBudget(device, host), turn_s, time.monotonic, lambda: None)


def create_plan(
    number: int, order: tuple[ModelName, ...] = (), pinned: bool = False, **targets: Tier
) -> PlacementPlan:
    return PlacementPlan(
        node_id=NodeId("n"),
        boot_id=BootId("b"),
        number=number,
        targets=tuple(
            PlacementTarget(name=ModelName(name), tier=tier, is_pinned=pinned)
            for name, tier in targets.items()
        ),
        eviction_order=order,
    )


async def test_a_start_fills_the_device_and_displaces_nobody() -> None:
    keeper = create_keeper(20)
    models = [MovingModel(keeper, name) for name in "abc"]
    hot = MovingModel(keeper, "hot", service_class=ServiceClass.ALWAYS_HOT)
    keeper.start()
    await wait_until(lambda: models[0].tier is Tier.GPU)
    assert [model.tier for model in (hot, *models)] == [Tier.GPU, Tier.GPU, Tier.DISK, Tier.DISK]
    await keeper.stop()


async def test_one_wake_serves_all_who_wait() -> None:
    keeper = create_keeper(10)
    model = MovingModel(keeper, "a", move_s=lambda: 0.01)
    await asyncio.gather(*(model.ask() for _ in range(100)))
    assert model.moves == [Tier.GPU]
    assert model.num_held == 100


async def test_an_idle_model_goes_at_once_and_comes_back_from_the_host() -> None:
    keeper = create_keeper(10, host=20)
    first, second = MovingModel(keeper, "a"), MovingModel(keeper, "b")
    await first.ask()
    first.end()
    await second.ask()
    assert (first.tier, second.tier) == (Tier.HOST, Tier.GPU)
    second.end()
    await first.ask()
    assert (first.tier, second.tier) == (Tier.GPU, Tier.HOST)


async def test_a_busy_model_has_its_turn_and_then_takes_no_more() -> None:
    keeper = create_keeper(10, turn_s=0.05)
    first, second = MovingModel(keeper, "a"), MovingModel(keeper, "b")
    await first.ask()
    waiting = asyncio.create_task(second.ask())
    await asyncio.sleep(0.01)
    assert first.is_open  # its turn
    await wait_until(lambda: not first.is_open)
    late = asyncio.create_task(first.ask())  # comes after the turn: waits for the model to return
    await asyncio.sleep(0.01)
    assert not late.done()
    first.end()
    await asyncio.wait_for(waiting, 5)
    second.end()
    await asyncio.wait_for(late, 5)
    assert first.moves == [Tier.GPU, Tier.HOST, Tier.GPU]


async def test_a_wait_that_is_given_up_lets_the_busy_model_go_on() -> None:
    keeper = create_keeper(10)
    first, second = MovingModel(keeper, "a"), MovingModel(keeper, "b")
    await first.ask()
    waiting = asyncio.create_task(second.ask())
    await wait_until(lambda: not first.is_open)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    keeper.note_change()
    await wait_until(lambda: first.is_open)
    assert first.moves == [Tier.GPU]


async def test_who_waits_for_a_long_answer_holds_up_nobody_who_needs_less() -> None:
    keeper = create_keeper(30)
    long, idle = MovingModel(keeper, "long", ModelSize(20, 0)), MovingModel(keeper, "idle")
    large, small = MovingModel(keeper, "large", ModelSize(20, 0)), MovingModel(keeper, "small")
    await long.ask()
    await idle.ask()
    idle.end()
    waiting = asyncio.create_task(large.ask())
    await wait_until(lambda: not long.is_open)
    await asyncio.wait_for(small.ask(), 5)
    assert (idle.tier, waiting.done()) == (Tier.HOST, False)
    small.end()
    long.end()
    await asyncio.wait_for(waiting, 5)


async def test_those_who_wait_for_one_all_come_in_any_order_and_it_returns() -> None:
    keeper = create_keeper(10)
    first, *others = (MovingModel(keeper, name) for name in "abc")

    async def visit(model: MovingModel) -> None:
        await model.ask()
        await asyncio.sleep(0.001)
        model.end()

    await first.ask()
    visits = [asyncio.create_task(visit(model)) for model in (*others, *others)]
    await wait_until(lambda: not first.is_open)
    visits.append(asyncio.create_task(visit(first)))
    first.end()
    await asyncio.wait_for(asyncio.gather(*visits), 5)
    assert sum(model.moves.count(Tier.GPU) for model in (first, *others)) <= 6


async def test_what_never_leaves_is_not_displaced_even_for_what_then_cannot_come() -> None:
    keeper = create_keeper(10)
    hot = MovingModel(keeper, "hot", service_class=ServiceClass.ALWAYS_HOT)
    other, giant = MovingModel(keeper, "a"), MovingModel(keeper, "b", ModelSize(11, 0))
    await hot.ask()
    hot.end()
    with pytest.raises(ModelCold):
        await other.ask()
    with pytest.raises(ModelFailed):
        await giant.ask()
    assert hot.moves == [Tier.GPU]


async def test_a_model_that_does_not_start_harms_nobody_and_may_be_asked_again() -> None:
    keeper = create_keeper(20)
    bad, good = MovingModel(keeper, "a"), MovingModel(keeper, "b")
    bad.refusals = 1
    with pytest.raises(ModelCold):
        await bad.ask()
    await good.ask()
    await bad.ask()
    assert keeper.books.measure().device_used_bytes == 20


async def test_a_failed_model_displaces_nobody() -> None:
    keeper = create_keeper(10)
    good, failed = MovingModel(keeper, "a"), MovingModel(keeper, "b")
    failed.failure = "its file is broken"
    await good.ask()
    good.end()
    with pytest.raises(ModelFailed):
        await failed.ask()
    assert good.tier is Tier.GPU


async def test_a_plan_moves_what_is_idle_and_orders_who_goes() -> None:
    keeper = create_keeper(20)
    a, b, c = (MovingModel(keeper, name) for name in "abc")
    for model in (a, b):
        await model.ask()
        model.end()
    a.last_used_unix_ms, b.last_used_unix_ms = 1, 2
    keeper.follow(create_plan(1, (b.name, a.name)))
    await c.ask()  # without the plan `a` would go, which was used before `b`
    assert (a.tier, b.tier) == (Tier.GPU, Tier.HOST)
    c.end()
    keeper.follow(create_plan(2, a=Tier.HOST, b=Tier.GPU))
    await wait_until(lambda: (a.tier, b.tier, c.tier) == (Tier.HOST, Tier.GPU, Tier.GPU))
    keeper.follow(create_plan(1, a=Tier.GPU, b=Tier.DISK))  # an old one
    await asyncio.sleep(0.05)
    assert b.tier is Tier.GPU


async def test_a_plan_does_not_move_what_is_at_work() -> None:
    keeper = create_keeper(10)
    a, b = MovingModel(keeper, "a"), MovingModel(keeper, "b")
    await a.ask()
    keeper.follow(create_plan(1, a=Tier.HOST, b=Tier.GPU))
    await asyncio.sleep(0.05)
    assert (a.tier, b.tier) == (Tier.GPU, Tier.DISK)
    assert a.is_open


async def test_a_pin_holds_until_a_plan_without_it() -> None:
    keeper = create_keeper(10)
    a, b = MovingModel(keeper, "a"), MovingModel(keeper, "b")
    keeper.follow(create_plan(1, pinned=True, a=Tier.GPU))
    await wait_until(lambda: a.tier is Tier.GPU)
    with pytest.raises(ModelCold):
        await b.ask()
    keeper.follow(create_plan(2))
    await b.ask()


async def test_a_model_found_too_large_goes_when_it_has_answered_who_came_meanwhile() -> None:
    keeper = create_keeper(40)
    busy, idle = MovingModel(keeper, "a", ModelSize(20, 0)), MovingModel(keeper, "b")
    grown = MovingModel(keeper, "c", move_s=lambda: 0.05)
    grown.grows_to = ModelSize(30, 0)
    other = MovingModel(keeper, "d")
    for model in (busy, idle):
        await model.ask()
    idle.end()
    idle._move_s = lambda: 0.3  # whoever makes room is held up by it
    waiting = [asyncio.create_task(model.ask()) for model in (grown, other)]
    await wait_until(lambda: grown.tier is Tier.GPU)
    grown.num_held += 1  # it was open for a moment
    late = asyncio.create_task(grown.ask())
    await wait_until(lambda: idle.tier is Tier.HOST)
    await asyncio.sleep(0.05)
    assert (grown.tier, grown.num_held, late.done()) == (Tier.GPU, 1, False)
    grown.end()
    for task in (waiting[0], late):
        with pytest.raises(ModelCold):
            await asyncio.wait_for(task, 5)
    assert grown.tier is Tier.DISK
    await asyncio.wait_for(waiting[1], 5)
    busy.end()
    other.end()
    await asyncio.wait_for(grown.ask(), 5)  # now that its size is known
    await keeper.stop()


@pytest.mark.parametrize("seed", range(6))
async def test_in_a_storm_every_request_is_served_and_the_memory_holds(seed: int) -> None:
    chance = random.Random(seed)
    keeper = PlacementKeeper(MemoryBudget(30, 25), 0.002, time.monotonic, lambda: None)
    models = [
        MovingModel(
            keeper,
            f"m{number}",
            ModelSize(chance.randint(3, 12), chance.randint(0, 3)),
            move_s=lambda: chance.random() * 0.002,
        )
        for number in range(13)
    ]
    num_served = 0

    async def ask_again_and_again() -> None:
        nonlocal num_served
        for _ in range(15):
            model = models[min(int(chance.expovariate(0.4)), 12)]
            model.refusals = int(chance.random() < 0.02)
            try:
                await model.ask()
            except ModelCold:
                continue
            await asyncio.sleep(chance.random() * 0.003)
            model.last_used_unix_ms += 1
            model.end()
            num_served += 1

    async def watch() -> None:
        while True:
            use = keeper.books.measure()
            assert use.device_used_bytes <= 30
            # A model that wakes holds its copy until it is awake.
            assert use.host_used_bytes <= 25
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    asking = [ask_again_and_again() for _ in range(20)]
    await asyncio.wait_for(asyncio.gather(*asking), 60)
    assert not watching.done()
    watching.cancel()
    assert num_served > 250
    assert not any(model.num_held or model.num_waiting for model in models)
