"""What an account may try to get more than its turn, or to make the queue cost more than it should.

Each guard is shown with a control in which the attack works without it.
"""

from collections import Counter
from collections.abc import Callable, Sequence

import msgspec
import pytest

from contracts.errors import PoolSaturated, ResidencyViolation
from contracts.ids import ModelName, NodeId
from gateway.fair_queue import queue as fair_queue
from gateway.fair_queue.crowd import Crowd, CrowdBounds
from gateway.fair_queue.lines import Regions
from gateway.fair_queue.model_queue import ModelQueue
from gateway.fair_queue.waiter import Waiter
from gateway.routing.route_plan import RouteNeed, RoutePlan
from tests.gateway.fair_queue.queue_words import (
    MAX_WAITING,
    Asked,
    World,
    name_account,
    refusal_of,
    settle,
)
from tests.gateway.routing.fleet_words import MODEL, create_card, create_load, create_report

NUM_WAITING = 100
OTHER_MODEL = ModelName("@cf/other")


def count_plans(world: World, monkeypatch: pytest.MonkeyPatch) -> list[RouteNeed]:
    """What all nodes are looked at for from now on."""
    needs: list[RouteNeed] = []
    plan = world.fleet.plan

    def note(need: RouteNeed, at: NodeId | None = None) -> RoutePlan:
        needs.append(need)
        return plan(need, at)

    monkeypatch.setattr(world.fleet, "plan", note)
    return needs


async def sweep_made_up_regions(monkeypatch: pytest.MonkeyPatch) -> int:
    """How often a sweep looks at all nodes where each request names a region of its own."""
    world = World()
    asked = [world.ask("1", "weur", f"made-up-{number}") for number in range(NUM_WAITING)]
    await settle()
    needs = count_plans(world, monkeypatch)
    world.queue.sweep()
    world.queue.end()
    for one in asked:
        await refusal_of(one)
    return len(needs)


async def test_regions_that_are_none_make_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await sweep_made_up_regions(monkeypatch) == 1


async def test_were_they_believed_each_request_would_look_at_every_node_in_every_sweep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fair_queue, "_find_kind", lambda need, *there: need.allowed_regions)
    monkeypatch.setattr(fair_queue, "_MAX_KINDS", 10 * NUM_WAITING)
    assert await sweep_made_up_regions(monkeypatch) == NUM_WAITING


async def test_of_many_kinds_a_sweep_looks_at_some_and_the_next_ones_at_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    for number in range(NUM_WAITING):
        world.ask("1", need=RouteNeed(MODEL, None, revision=str(number)))
    last = world.ask("1", "nowhere")
    await settle()
    needs = count_plans(world, monkeypatch)
    sizes: list[int] = []
    while not last.task.done():
        world.queue.sweep()
        await settle()
        sizes.append(len(needs) - sum(sizes))
    assert isinstance(last.error, ResidencyViolation)  # its turn to be looked at has come
    assert max(sizes) < NUM_WAITING / 2
    assert sum(sizes) == NUM_WAITING + 1
    world.queue.end()
    await settle()


async def count_looks_by_model(
    monkeypatch: pytest.MonkeyPatch, num_sweeps: int
) -> list[Counter[ModelName]]:
    """What all nodes are looked at for in each sweep, where two models have ten kinds waiting."""
    world = World()
    loads = [create_load(name, waiting=MAX_WAITING) for name in (MODEL, OTHER_MODEL)]
    cards = tuple(create_card(load.name) for load in loads)
    for node_id in ("a", "b"):
        report = create_report(node_id)
        world.fleet.record_report(msgspec.structs.replace(report, models=cards, loads=tuple(loads)))
    for number in range(10):
        for model in (MODEL, OTHER_MODEL):
            world.ask("1", need=RouteNeed(model, None, revision="r1", min_context=number))
    await settle()
    sweeps: list[Counter[ModelName]] = []
    for _ in range(num_sweeps):
        with monkeypatch.context() as patch:
            needs = count_plans(world, patch)
            world.queue.sweep()
        sweeps.append(Counter(need.model for need in needs))
    world.queue.end()
    await settle()
    return sweeps


async def test_in_a_large_fleet_a_sweep_looks_for_fewer_kinds_of_all_models_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (whole,) = await count_looks_by_model(monkeypatch, 1)  # the control: two nodes are few
    assert whole == {MODEL: 10, OTHER_MODEL: 10}
    monkeypatch.setattr(fair_queue, "_MAX_LOOKS", 8)
    sweeps = await count_looks_by_model(monkeypatch, 5)
    assert [sweep.total() for sweep in sweeps] == [4] * 5
    assert sum(sweeps, Counter()) == whole  # it is the turn of all in the end


async def test_of_a_full_node_nobody_who_waits_is_looked_at_and_one_of_all_that_are_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    asked = [world.ask(letter) for letter in "123" * 30]
    asked += [world.ask("4", "weur", f"made-up-{number}") for number in range(30)]
    await settle()
    looked_at: list[RouteNeed] = []
    num_asked, takes, find_next = 0, world.fleet.takes, ModelQueue.find_next

    def count(node_id: NodeId, need: RouteNeed) -> bool:
        nonlocal num_asked
        num_asked += 1
        return takes(node_id, need)

    def note(
        queue: ModelQueue, may_go: Callable[[Regions], bool], may_take: Callable[[Waiter], bool]
    ) -> Waiter | None:
        def note_one(waiter: Waiter) -> bool:
            looked_at.append(waiter.need)
            return may_take(waiter)

        return find_next(queue, may_go, note_one)

    monkeypatch.setattr(world.fleet, "takes", count)
    monkeypatch.setattr(ModelQueue, "find_next", note)
    world.report("a")
    assert (num_asked, looked_at) == (1, [])
    world.report("a", waiting=MAX_WAITING - 1)  # the control
    await settle()
    assert sum(one.is_placed for one in asked) == 1
    assert (num_asked, len(looked_at)) == (4, 1)
    world.queue.end()
    await settle()


async def test_a_node_with_room_is_asked_once_for_all_alike_that_it_cannot_serve(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    for _ in range(30):
        world.ask("1", need=RouteNeed(MODEL, None, revision="another"))
    await settle()
    asked_for: list[str | None] = []
    takes = world.fleet.takes

    def note(node_id: NodeId, need: RouteNeed) -> bool:
        asked_for.append(need.revision)
        return takes(node_id, need)

    monkeypatch.setattr(world.fleet, "takes", note)
    world.report("a", waiting=0)
    assert asked_for == [None, "another"]
    world.queue.end()
    await settle()


async def compete_after_refund(world: World) -> tuple[list[Asked], list[Asked]]:
    """Two accounts of which the first gets back what it was charged in an earlier queue."""
    early = world.ask("1", num_tokens=100_000)
    await settle()
    world.report("a", waiting=MAX_WAITING - 1)
    await settle()
    assert early.is_placed
    assert world.queue.num_waiting == 0  # what it was charged is forgotten with the queue
    hostile = [world.ask("1") for _ in range(6)]
    honest = [world.ask("2") for _ in range(6)]
    await settle()
    world.queue.correct(early.waiter, None)  # it is aborted before it has come to anything
    world.report("a", waiting=MAX_WAITING - 6)
    await settle()
    world.queue.end()
    await settle()
    return hostile, honest


def count_placed(asked: Sequence[Asked]) -> int:
    """How many have a node."""
    return sum(one.is_placed for one in asked)


@pytest.mark.parametrize("is_swept", [False, True])
async def test_whose_requests_a_node_refuses_keeps_nobody_else_from_it(is_swept: bool) -> None:
    """Of two that are alike the first is of an account that leaves the node alone. The control: it
    goes there when nobody else does and it has waited for long enough.
    """
    world = World()
    mine, others = (RouteNeed(MODEL, None, may_wait=True, owner=owner) for owner in (1, 2))
    for _ in range(5):
        world.fleet.health.refusals.note_refused(NodeId("a"), mine, 0.0)
    first, second = world.ask("1", need=mine), world.ask("2", need=others)
    await settle()
    if is_swept:
        world.fleet.on_news = None
    world.report("a", waiting=0, running=0)
    if is_swept:
        world.queue.sweep()
    await settle()
    assert second.plan.node_id == "a"
    assert not first.is_placed
    world.now_s = 1.5
    world.report("a", waiting=0, running=0)
    world.queue.sweep()
    await settle()
    assert first.plan.node_id == "a"


async def test_what_was_charged_before_the_queue_was_empty_is_not_given_back_after() -> None:
    hostile, honest = await compete_after_refund(World())
    assert (count_placed(hostile), count_placed(honest)) == (3, 3)


async def test_were_it_given_back_its_account_would_go_before_all_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    correct = ModelQueue.correct

    def believe(queue: ModelQueue, waiter: Waiter, num_tokens: int) -> None:
        """As if this queue had charged it."""
        queue._charged.add(waiter)  # pyright: ignore[reportPrivateUsage]
        correct(queue, waiter, num_tokens)

    monkeypatch.setattr(ModelQueue, "correct", believe)
    hostile, honest = await compete_after_refund(World())
    assert (count_placed(hostile), count_placed(honest)) == (6, 0)


async def test_what_is_corrected_twice_counts_once() -> None:
    world = World()
    first, others = world.ask("1"), [world.ask("2") for _ in range(4)]
    mine = [world.ask("1") for _ in range(4)]
    await settle()
    world.report("a", waiting=MAX_WAITING - 1)
    await settle()
    for _ in range(10):
        world.queue.correct(first.waiter, None)
    world.report("a", waiting=MAX_WAITING - 4)
    await settle()
    assert (count_placed(mine), count_placed(others)) == (2, 2)
    world.queue.end()
    await settle()


@pytest.mark.parametrize("leaves_first", [True, False])
async def test_a_request_that_never_learns_of_its_node_costs_its_account_nothing(
    leaves_first: bool,
) -> None:
    world = World()
    leaving, mine, other = world.ask("1", num_tokens=900), world.ask("1"), world.ask("2")
    await settle()
    if leaves_first:
        leaving.task.cancel()
    world.report("a", waiting=MAX_WAITING - 1)
    leaving.task.cancel()
    await settle()
    assert leaving.task.cancelled()
    assert mine.is_placed  # the older of two accounts that were served nothing
    assert not other.task.done()
    world.queue.end()
    await settle()


async def crowd_out(world: World) -> tuple[list[Asked], Asked]:
    """An account that fills another model's part, and would displace its neighbour's here."""
    victims = [world.ask("1", num_tokens=100) for _ in range(4)]
    for _ in range(5):
        world.ask("2", need=RouteNeed(OTHER_MODEL, None), num_tokens=100)
    world.ask("3", need=RouteNeed(ModelName("@cf/third"), None), num_tokens=100)
    await settle()
    hostile = world.ask("2", num_tokens=200)
    await settle()
    return victims, hostile


async def test_nobody_gives_way_to_a_request_that_is_refused_all_the_same() -> None:
    world = World(max_tokens=1000)
    victims, hostile = await crowd_out(world)
    assert isinstance(hostile.error, PoolSaturated)
    assert [one.error for one in victims] == [None] * 4
    world.queue.end()
    await settle()


async def test_asked_one_after_the_other_the_bounds_would_throw_somebody_out_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(max_tokens=1000)
    find_room = Crowd.find_room

    def forget(
        crowd: Crowd, newcomer: Waiter, leaving: Sequence[Waiter] = ()
    ) -> list[Waiter] | None:
        """Those that give way in the model's crowd leave at once, whatever the other one says."""
        found = find_room(crowd, newcomer, leaving)
        for waiter in found or ():
            world.queue._fail(  # pyright: ignore[reportPrivateUsage]
                waiter, PoolSaturated("Busy."), fair_queue.QueueEnd.DISPLACED
            )
        return [] if found is not None else None

    monkeypatch.setattr(Crowd, "find_room", forget)
    victims, hostile = await crowd_out(world)
    assert isinstance(hostile.error, PoolSaturated)
    assert sum(one.error is not None for one in victims) == 1
    world.queue.end()
    await settle()


@pytest.mark.parametrize("number", range(3))
def test_a_crowd_stays_in_order_whoever_was_thought_to_leave(number: int) -> None:
    crowd = Crowd(CrowdBounds(max_requests=3, max_tokens=1000, max_bytes=1000))
    need = RouteNeed(MODEL, None)
    inside = [Waiter(need, name_account("1"), 0, 1, 1, 0.0, 1.0) for _ in range(3)]
    for waiter in inside:
        crowd.add(waiter)
    assert (
        crowd.find_room(Waiter(need, name_account("2"), 0, 1, 1, 0.0, 1.0), [inside[number]]) == []
    )
    assert crowd.find_room(Waiter(need, name_account("2"), 0, 1, 1, 0.0, 1.0)) == [inside[2]]
