"""Models whose weights are elsewhere: fetched when wanted, within the disk's budget."""

import asyncio

import pytest

from contracts.errors import ModelCold, ModelFailed
from contracts.placement import ServiceClass, Tier
from gpu_pool.server.placement.keeper import PlacementKeeper
from gpu_pool.server.placement.model_size import ModelSize
from gpu_pool.server.placement.room import MemoryBudget
from gpu_pool.server.remote.download import FetchRefusedError
from tests.gpu_pool.server.placement.moving_model import MovingModel
from tests.gpu_pool.server.placement.test_keeper import create_plan


class Files:
    """Weights that can be fetched, as a list of what was done with them."""

    def __init__(self, model: MovingModel, num_bytes: int) -> None:
        self.model = model
        self.num_bytes = num_bytes
        self.disk_bytes = 0
        self.num_fetches = 0
        self.error: Exception | None = None
        self.is_shared = False
        self.going_on = asyncio.Event()
        self.going_on.set()

    @property
    def are_here(self) -> bool:
        return self.disk_bytes == self.num_bytes

    @property
    def missing_bytes(self) -> int:
        return self.num_bytes - self.disk_bytes

    async def fetch(self) -> None:
        self.num_fetches += 1
        await self.going_on.wait()
        if self.error is not None:
            raise self.error
        self.disk_bytes = self.num_bytes

    def drop(self) -> bool:
        if self.is_shared:
            return False
        assert self.model.tier is not Tier.GPU, "files go under a model that is awake"
        self.disk_bytes = 0
        self.model.tier = Tier.REMOTE
        return True


class Node:
    """A keeper whose device holds one of its models at a time."""

    def __init__(self, disk: int | None, device: int = 10) -> None:
        self.now_s = 100.0
        self.keeper = PlacementKeeper(
            MemoryBudget(device, 100, disk), 0.0, lambda: self.now_s, lambda: None
        )

    def add(self, name: str, **changes: object) -> tuple[MovingModel, Files]:
        model = MovingModel(self.keeper, name, ModelSize(10, 0), **changes)  # type: ignore[arg-type]
        model.tier = Tier.REMOTE
        model.last_used_unix_ms = len(list(self.keeper.books))
        files = model.files = Files(model, 10)
        return model, files

    async def use(self, model: MovingModel) -> None:
        """Brings it to the device, and away from there to the disk."""
        await self.keeper.bring(model.name)
        assert model.tier is Tier.GPU
        await model.move_to(Tier.DISK)


async def test_a_start_fetches_nothing_but_what_is_always_to_be_hot() -> None:
    node = Node(disk=100)
    (idle, idle_files) = node.add("@test/a")
    (hot, hot_files) = node.add("@test/b", service_class=ServiceClass.ALWAYS_HOT)
    node.keeper.start()
    await asyncio.sleep(0.05)
    assert (idle.tier, idle_files.num_fetches) == (Tier.REMOTE, 0)
    assert (hot.tier, hot_files.num_fetches) == (Tier.GPU, 1)
    await node.keeper.stop()


async def test_one_fetch_serves_all_who_wait_and_nobody_leaves_the_device_for_it_before() -> None:
    node = Node(disk=100)
    busy, _ = node.add("@test/a")
    await node.keeper.bring(busy.name)
    model, files = node.add("@test/b")
    files.going_on.clear()
    waiting = [asyncio.create_task(node.keeper.bring(model.name)) for _ in range(3)]
    await asyncio.sleep(0.05)
    assert busy.tier is Tier.GPU  # it may go on while the other's files come
    placement = {one.name: one for one in node.keeper.books.describe()}[model.name]
    assert (placement.tier, placement.is_moving) == (Tier.REMOTE, True)
    files.going_on.set()
    await asyncio.gather(*waiting)
    assert (model.tier, files.num_fetches, model.moves) == (Tier.GPU, 1, [Tier.DISK, Tier.GPU])


async def test_who_was_used_longest_ago_gives_up_its_files() -> None:
    node = Node(disk=20)
    models = [node.add(f"@test/{letter}") for letter in "abc"]
    for model, _ in models[:2]:
        await node.use(model)
    await node.keeper.bring(models[2][0].name)
    assert [model.tier for model, _ in models] == [Tier.REMOTE, Tier.DISK, Tier.GPU]
    assert node.keeper.books.measure().disk_used_bytes == 20
    assert node.keeper.books.measure().disk_budget_bytes == 20


async def test_a_plan_says_whose_files_go_first() -> None:
    node = Node(disk=20)
    models = [node.add(f"@test/{letter}") for letter in "abc"]
    for model, _ in models[:2]:
        await node.use(model)
    names = tuple(model.name for model, _ in models)
    order = (names[1], names[0], names[2])
    node.keeper.follow(create_plan(1, order, **dict.fromkeys(names[:2], Tier.DISK)))
    await asyncio.sleep(0.05)
    await node.keeper.bring(names[2])
    assert [model.tier for model, _ in models] == [Tier.DISK, Tier.REMOTE, Tier.GPU]


async def test_an_idle_model_leaves_memory_for_files_that_requests_wait_for() -> None:
    node = Node(disk=20, device=100)
    (busy, _), (idle, _), (wanted, _) = (node.add(f"@test/{x}") for x in "abc")
    for model in (busy, idle):
        await node.keeper.bring(model.name)
    busy.num_held = 1
    with pytest.raises(ModelCold, match="no room on this node's disk"):
        await node.keeper.bring(wanted.name)  # nobody waits: it was but a wish
    assert [model.tier for model in (busy, idle, wanted)] == [Tier.GPU, Tier.GPU, Tier.REMOTE]
    wanted.num_waiting = 1
    await node.keeper.bring(wanted.name)
    assert [model.tier for model in (busy, idle, wanted)] == [Tier.GPU, Tier.REMOTE, Tier.GPU]


async def test_files_of_what_is_awake_or_relied_on_elsewhere_stay() -> None:
    node = Node(disk=20, device=100)
    (awake, _), (shared, shared_files), (wanted, _) = (node.add(f"@test/{x}") for x in "abc")
    await node.keeper.bring(awake.name)
    await node.use(shared)
    shared_files.is_shared = True
    with pytest.raises(ModelCold, match="no room on this node's disk"):
        await node.keeper.bring(wanted.name)
    assert [model.tier for model in (awake, shared, wanted)] == [Tier.GPU, Tier.DISK, Tier.REMOTE]
    shared_files.is_shared = False
    await node.keeper.bring(wanted.name)
    assert [model.tier for model in (awake, shared, wanted)] == [Tier.GPU, Tier.REMOTE, Tier.GPU]


async def test_a_model_larger_than_the_disk_budget_displaces_nobody() -> None:
    node = Node(disk=10)
    small, _ = node.add("@test/a")
    await node.use(small)
    large, files = node.add("@test/b")
    files.num_bytes = 11
    with pytest.raises(ModelFailed, match="larger than this node's disk budget"):
        await node.keeper.bring(large.name)
    assert small.tier is Tier.DISK


@pytest.mark.parametrize("error", [FetchRefusedError("damaged"), OSError(28, "No space left")])
async def test_a_fetch_that_failed_is_not_tried_again_at_once(error: Exception) -> None:
    node = Node(disk=100)
    model, files = node.add("@test/a")
    files.error = error
    for _ in range(3):
        with pytest.raises(ModelCold, match="could not be fetched") as told:
            await node.keeper.bring(model.name)
    assert files.num_fetches == 1
    assert "damaged" not in told.value.message  # what is wrong there is the operator's business
    files.error = None
    node.now_s += 11
    await node.keeper.bring(model.name)
    assert model.tier is Tier.GPU


async def test_what_a_fetch_takes_is_told_beforehand() -> None:
    node = Node(disk=100)
    model, files = node.add("@test/a")
    files.num_bytes = 10
    guess_s = node.keeper.books.estimate_wake_s(model.name)
    assert guess_s > 0
    files.going_on.clear()
    task = asyncio.create_task(node.keeper.bring(model.name))
    await asyncio.sleep(0.02)
    node.now_s += 40
    files.going_on.set()
    await task
    await model.move_to(Tier.DISK)
    assert files.drop()
    assert node.keeper.books.estimate_wake_s(model.name) >= 40
