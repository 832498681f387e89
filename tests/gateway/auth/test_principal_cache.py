"""The cache of principals: fast, bounded, and never wrong for longer than promised."""

import asyncio
import secrets
import shutil
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import StoreUnavailable
from gateway.auth.principal_cache import PrincipalCache
from gateway.settings import AuthSettings
from gateway.sources import Sources
from tenancy.audit.heads import NoHeadLog
from tenancy.db import Database, create_engine, parse_database_url
from tenancy.directory import SqlTenancy
from tenancy.encryption.key_ring import create_key_ring
from tenancy.interfaces import ApiTokenStatus, Permission, Principal
from tenancy.store import StoreParts
from tests.fixtures.acting_tenancy import TESTER

READ = frozenset({Permission.WORKERS_AI_READ})


class CountingTenancy(SqlTenancy):
    """Tenancy that counts what reaches it and can be slow or out of order."""

    num_lookups = 0
    is_down = False
    gate: asyncio.Event | None = None

    def __init__(self, parts: StoreParts) -> None:
        super().__init__(parts)
        self.answered = asyncio.Event()

    async def find_principal(self, value: str) -> Principal | None:
        self.num_lookups += 1
        if self.is_down:
            raise StoreUnavailable("Down.")
        principal = await super().find_principal(value)
        self.answered.set()
        if self.gate is not None:
            await self.gate.wait()
        return principal

    async def read_epoch(self) -> int:
        if self.is_down:
            raise StoreUnavailable("Down.")
        return await super().read_epoch()


class World:
    """A tenancy, a clock and a cache between them."""

    def __init__(self, database: Path, **settings: Any) -> None:
        self.now_s = 1000.0
        ring = create_key_ring(secrets.token_bytes)
        engine = create_engine(parse_database_url(f"sqlite:///{database}"))
        parts = StoreParts(Database(engine), ring, time.time, secrets.token_bytes, NoHeadLog())
        self.tenancy = CountingTenancy(parts)
        self.administration = self.tenancy.act_as(TESTER)
        sources = Sources(lambda: self.now_s, time.time, lambda _: 0)
        self.cache = PrincipalCache(self.tenancy, AuthSettings(**settings), sources)

    async def issue(self) -> tuple[str, str, str]:
        """Account, token id and value of a new token."""
        account = await self.administration.create_account("a")
        issued = await self.administration.create_api_token(account.account_id, "t", READ)
        return account.account_id, issued.api_token.api_token_id, issued.value.reveal()

    async def find(self, value: str) -> Principal | None:
        """What the authenticator does."""
        digest = self.cache.digest(value)
        assert digest is not None
        return self.cache.peek(digest) or await self.cache.find(value, digest)


OpenWorld = Callable[..., World]


@pytest.fixture
async def open_world(tmp_path: Path, database_template: Path) -> AsyncGenerator[OpenWorld]:
    """Makes worlds in which nobody is known yet."""
    worlds: list[World] = []

    def create(**settings: Any) -> World:
        database = shutil.copy(database_template, tmp_path / f"hearth-{len(worlds)}.db")
        worlds.append(World(Path(database), **settings))
        return worlds[-1]

    yield create
    for world in worlds:
        await world.tenancy.close()


async def test_a_known_token_costs_no_look_up(open_world: OpenWorld) -> None:
    world = open_world()
    *_, value = await world.issue()
    await world.cache.poll_epoch()
    for _ in range(5):
        assert await world.find(value) is not None
    assert world.tenancy.num_lookups == 1


async def test_many_at_once_share_one_look_up(open_world: OpenWorld) -> None:
    world = open_world()
    *_, value = await world.issue()
    found = await asyncio.gather(*(world.find(value) for _ in range(20)))
    assert all(found)
    assert world.tenancy.num_lookups == 1


async def test_a_client_that_leaves_does_not_spoil_the_look_up_of_others(
    open_world: OpenWorld,
) -> None:
    world = open_world()
    *_, value = await world.issue()
    world.tenancy.gate = asyncio.Event()
    leaving, staying = (asyncio.create_task(world.find(value)) for _ in range(2))
    await asyncio.sleep(0)
    leaving.cancel()
    world.tenancy.gate.set()
    assert await staying is not None


async def test_a_change_of_the_epoch_forgets_everything(open_world: OpenWorld) -> None:
    world = open_world()
    account, token_id, value = await world.issue()
    await world.cache.poll_epoch()
    found = await world.find(value)
    assert found is not None
    await world.administration.set_api_token_status(account, token_id, ApiTokenStatus.DISABLED)  # type: ignore[arg-type]
    stale = await world.find(value)
    assert stale is not None
    assert stale.status is ApiTokenStatus.ACTIVE  # the control: until the poll it is remembered
    await world.cache.poll_epoch()
    fresh = await world.find(value)
    assert fresh is not None
    assert fresh.status is ApiTokenStatus.DISABLED


async def test_a_slow_look_up_does_not_bring_back_what_was_revoked_meanwhile(
    open_world: OpenWorld,
) -> None:
    world = open_world()
    account, token_id, value = await world.issue()
    await world.cache.poll_epoch()
    world.tenancy.gate = asyncio.Event()
    slow = asyncio.create_task(world.find(value))
    await world.tenancy.answered.wait()
    await world.administration.delete_api_token(account, token_id)  # type: ignore[arg-type]
    await world.cache.poll_epoch()
    world.tenancy.gate.set()
    assert await slow is not None  # it was good when the question was asked
    assert await world.find(value) is None  # and that answer was not remembered


async def test_a_wrong_token_is_looked_up_once_and_only_for_a_moment(open_world: OpenWorld) -> None:
    world = open_world(rejection_ttl_s=1.0)
    account, token_id, value = await world.issue()
    await world.administration.delete_api_token(account, token_id)  # type: ignore[arg-type]
    await world.cache.poll_epoch()
    for _ in range(5):
        assert await world.find(value) is None
    assert world.tenancy.num_lookups == 1
    world.now_s += 1.1
    assert await world.find(value) is None
    assert world.tenancy.num_lookups == 2


async def test_the_cache_is_bounded_both_ways(open_world: OpenWorld) -> None:
    world = open_world(max_cached_principals=3, max_cached_rejections=3)
    await world.cache.poll_epoch()
    for _ in range(10):
        account, token_id, value = await world.issue()
        await world.find(value)
        await world.administration.delete_api_token(account, token_id)  # type: ignore[arg-type]
        await world.find(value[:-8] + value[-8:])
    assert len(world.cache._principals) <= 3
    assert len(world.cache._rejections) <= 3


async def test_without_the_store_nothing_is_trusted_for_longer_than_said(
    open_world: OpenWorld,
) -> None:
    world = open_world(max_staleness_s=10.0)
    *_, value = await world.issue()
    await world.cache.poll_epoch()
    assert await world.find(value) is not None
    world.tenancy.is_down = True
    world.now_s += 9
    await world.cache.poll_epoch()
    assert await world.find(value) is not None
    world.now_s += 2
    await world.cache.poll_epoch()
    with pytest.raises(StoreUnavailable):
        await world.find(value)
    world.tenancy.is_down = False
    await world.cache.poll_epoch()
    assert await world.find(value) is not None


async def test_tokens_with_a_long_common_prefix_are_kept_apart(open_world: OpenWorld) -> None:
    world = open_world()
    *_, one = await world.issue()
    *_, two = await world.issue()
    await world.cache.poll_epoch()
    first, second = await world.find(one), await world.find(two)
    assert first is not None
    assert second is not None
    assert first.account_id != second.account_id
    assert {len(key) for key in world.cache._principals} == {32}
