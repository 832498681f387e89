"""What accounts allow by now: asked once per change, and never while nothing has changed."""

import asyncio
import shutil
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from contracts.errors import AccountSuspended, StoreUnavailable, Unauthenticated
from contracts.ids import AccountId, ApiTokenId, RegionId
from gateway.auth.standing import Standing
from tenancy.changes import AccountChange
from tenancy.interfaces import AccountStatus, Principal
from tests.gateway.auth.test_principal_cache import World


class Scene:
    """A principal that was found, and a directory that counts who asks for it again."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.standing = Standing(world.cache, self)  # type: ignore[arg-type]
        self.num_asked = 0
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
        if self.is_down:
            raise StoreUnavailable("Down.")
        found = await self.world.tenancy.find_principal_by_id(account_id, api_token_id)
        if self.meanwhile is not None:
            what, self.meanwhile = self.meanwhile, None
            await self.change(what)
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
