"""What accounts allow by now: asked once per change, never while nothing has changed, and for each
place while nobody could tell.
"""

import asyncio
import shutil
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec
import pytest

from contracts.errors import AccountSuspended, StoreUnavailable, Unauthenticated
from contracts.ids import AccountId, ApiTokenId, RegionId
from gateway.auth.standing import Standing
from gateway.sources import Sources
from tenancy.changes import AccountChange
from tenancy.interfaces import AccountStatus, Principal
from tests.gateway.auth.test_principal_cache import World

NARROWED = AccountChange(allowed_regions=(RegionId("weur"),))
MAX_AGE_S = 10.0
"""For so long what the store has said is trusted, by default."""


class Scene:
    """A principal that was found, and a directory that counts who asks for it again."""

    def __init__(self, world: World) -> None:
        self.world = world
        sources = Sources(lambda: world.now_s, time.time, lambda _: 0)
        self.standing = Standing(world.cache, self, sources)  # type: ignore[arg-type]
        self.num_asked = 0
        self.frozen_s = 0.0
        """How long this process stands still once, after the store has read."""
        self.hangs = False
        self.is_down = False
        self.meanwhile: AccountChange | None = None
        """What changes while the store is being asked, after it has read."""

    async def begin(self) -> None:
        await self.world.cache.poll_epoch()
        account, self.token_id, value = await self.world.issue()
        self.account_id = AccountId(account)
        await self.world.cache.poll_epoch()
        found = await self.world.cache.find(value, self.world.cache.digest(value))
        assert found is not None
        self.principal, self.generation = found, self.world.cache.generation

    async def find_principal_by_id(
        self, account_id: AccountId, api_token_id: ApiTokenId
    ) -> Principal | None:
        self.num_asked += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.is_down:
            raise StoreUnavailable("Down.")
        found = await self.world.tenancy.find_principal_by_id(account_id, api_token_id)
        if self.meanwhile is not None:
            what, self.meanwhile = self.meanwhile, None
            await self.change(what)
        self.world.now_s, self.frozen_s = self.world.now_s + self.frozen_s, 0.0
        return found

    async def change(self, what: AccountChange) -> None:
        await self.world.administration.change_account(self.account_id, what)
        await self.world.cache.poll_epoch()

    async def find(self) -> Principal:
        return await self.standing.find(self.principal, self.generation)


@pytest.fixture
async def scene(tmp_path: Path, database_template: Path) -> AsyncGenerator[Scene]:
    database = tmp_path / "hearth.db"
    shutil.copyfile(database_template, database)
    scene = Scene(World(database))
    await scene.begin()
    yield scene
    await scene.world.tenancy.close()


async def test_while_nothing_has_changed_nobody_is_asked(scene: Scene) -> None:
    scene.is_down = True
    assert await scene.find() is scene.principal
    assert scene.num_asked == 0


async def test_after_a_change_the_store_is_asked_once_for_all(scene: Scene) -> None:
    await scene.change(AccountChange(allowed_regions=(RegionId("weur"),)))
    found = await asyncio.gather(*(scene.find() for _ in range(50)))
    assert {one.region_rules.allowed_regions for one in found} == {("weur",)}
    assert scene.num_asked == 1
    await scene.change(AccountChange(allowed_regions=None))
    assert (await scene.find()).region_rules.allowed_regions is None
    assert scene.num_asked == 2


async def test_a_store_that_is_away_is_no_answer_and_is_asked_again(scene: Scene) -> None:
    await scene.change(AccountChange(name="another"))
    scene.is_down = True
    with pytest.raises(StoreUnavailable):
        await scene.find()
    scene.is_down = False
    assert (await scene.find()).account_id == scene.account_id


async def test_who_is_suspended_or_deleted_is_refused(scene: Scene) -> None:
    await scene.change(AccountChange(status=AccountStatus.SUSPENDED))
    with pytest.raises(AccountSuspended):
        await scene.find()
    await scene.change(AccountChange(status=AccountStatus.ACTIVE))
    assert (await scene.find()).account_id == scene.account_id
    await scene.world.administration.delete_api_token(scene.account_id, ApiTokenId(scene.token_id))
    await scene.world.cache.poll_epoch()
    with pytest.raises(Unauthenticated):
        await scene.find()


async def test_an_answer_from_before_a_change_is_not_taken(scene: Scene) -> None:
    await scene.change(AccountChange(name="another"))
    scene.meanwhile = AccountChange(allowed_regions=(RegionId("weur"),))
    assert (await scene.find()).region_rules.allowed_regions == ("weur",)
    assert scene.num_asked == 2


async def test_where_nobody_tells_of_changes_each_place_asks(scene: Scene) -> None:
    """The task that follows the store has ended by a defect: generations stand still."""
    scene.world.cache.distrust()
    scene.generation = scene.world.cache.generation
    await scene.find()
    await scene.world.administration.change_account(
        scene.account_id, AccountChange(allowed_regions=(RegionId("weur"),))
    )
    assert (await scene.find()).region_rules.allowed_regions == ("weur",)
    assert scene.num_asked == 2


async def test_while_nobody_could_tell_of_a_change_each_place_asks(scene: Scene) -> None:
    scene.world.now_s += MAX_AGE_S - 1
    assert await scene.find() is scene.principal  # the control: so long what is known is trusted
    assert scene.num_asked == 0
    scene.world.now_s += 2
    for num_asked in (1, 2):
        assert (await scene.find()).region_rules.allowed_regions is None
        assert scene.num_asked == num_asked
    await scene.world.administration.change_account(scene.account_id, NARROWED)
    assert (await scene.find()).region_rules.allowed_regions == ("weur",)
    await scene.world.administration.change_account(
        scene.account_id, AccountChange(status=AccountStatus.SUSPENDED)
    )
    with pytest.raises(AccountSuspended):
        await scene.find()
    scene.is_down = True
    with pytest.raises(StoreUnavailable):
        await scene.find()


async def test_once_the_store_is_heard_of_again_nobody_asks(scene: Scene) -> None:
    scene.world.now_s += MAX_AGE_S + 1
    await scene.find()
    await scene.world.cache.poll_epoch()
    for _ in range(3):
        assert await scene.find() is scene.principal
    assert scene.num_asked == 1


async def test_an_answer_from_before_the_process_was_frozen_is_not_taken(scene: Scene) -> None:
    scene.world.now_s += MAX_AGE_S + 1
    scene.frozen_s = MAX_AGE_S - 1
    await scene.find()
    assert scene.num_asked == 1  # the control: what is so old is trusted
    scene.frozen_s = MAX_AGE_S + 1
    assert (await scene.find()).account_id == scene.account_id
    assert scene.num_asked == 3


async def test_a_store_that_says_nothing_is_waited_for_no_longer_than_its_word_holds(
    scene: Scene,
) -> None:
    settings = msgspec.structs.replace(scene.world.cache._settings, max_staleness_s=0.05)  # type: ignore[reportPrivateUsage]
    scene.world.cache._settings = settings  # type: ignore[reportPrivateUsage]
    scene.world.now_s += 1
    scene.hangs = True
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await asyncio.wait_for(scene.find(), 20)
    scene.hangs = False
    assert (await scene.find()).account_id == scene.account_id
