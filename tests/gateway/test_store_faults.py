"""PostgreSQL and Redis slow, silent and reset, behind a proxy: what tenants get then, and after.

Bounds are on what a request may wait for a store, with much room for slow machines.
"""

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from sqlalchemy import make_url

from contracts.quotas import QuotaLimits, QuotaScope
from migrations.upgrade import upgrade_database
from tests.fixtures.fault_proxy import FaultProxy
from tests.fixtures.redis_server import needs_redis, run_redis
from tests.gateway.running_gateway import Reply, RunningGateway, run_gateway, wait_until_async
from tests.gateway.scripted_node import ScriptedNode
from tests.gateway.test_kills import wait_for_ledger, wait_for_sums
from tests.gateway.test_money import set_limits
from tests.tenancy.postgres_server import create_database, is_postgres_expected, postgres_server

__all__ = ["postgres_server"]
pytestmark = pytest.mark.timeout(600)
BOUND_S = 40.0
"""Far above the sum of the product's own time-outs (5 s each to connect and per statement)."""
STALENESS_S = 3.0
NOBODY_S_REDIS = "redis://127.0.0.1:1/0"


@pytest.fixture(scope="module")
def database_url(postgres_server: str) -> Generator[str]:
    """A database of these tests' own."""
    with create_database(postgres_server) as url:
        upgrade_database(url)
        yield url


@asynccontextmanager
async def run_behind(
    proxy: FaultProxy, database_url: str, folder: Path, node: ScriptedNode
) -> AsyncGenerator[RunningGateway]:
    """A gateway whose way to PostgreSQL is `proxy`."""
    through = make_url(database_url).set(host="127.0.0.1", port=proxy.port)
    url = through.render_as_string(hide_password=False)
    sections = {
        "auth": {"max_staleness_s": STALENESS_S, "epoch_poll_s": 0.2},
        "shared_limits": {"url": NOBODY_S_REDIS},
    }
    async with run_gateway(folder, url, [node], **sections) as gateway:
        yield gateway


async def ask(gateway: RunningGateway, api_token: str = "") -> Reply:
    """A request that must be answered in time, whatever the answer."""
    path = gateway.account_path("/ai/run/@hearth/tests/small")
    body = b'{"prompt":"Hi","max_tokens":20}'
    return await asyncio.wait_for(gateway.send("POST", path, body, api_token=api_token), BOUND_S)


@pytest.mark.skipif(not is_postgres_expected(), reason="no PostgreSQL is installed")
@pytest.mark.parametrize("fault", ["swallow", "cut"])
async def test_a_database_that_is_away_stops_what_needs_it_and_nothing_is_lost(
    tmp_path: Path, database_url: str, node: ScriptedNode, fault: str
) -> None:
    """Known credentials serve until they are too old to be trusted; then 503, never 401."""
    url = make_url(database_url)
    proxy = FaultProxy(str(url.host), url.port or 5432)
    async with (
        proxy.serve(),
        run_behind(proxy, database_url, tmp_path, node) as gateway,
    ):
        other = await gateway.add_tenant()
        await gateway.gateway._cache.poll_epoch()
        assert (await ask(gateway)).status == 200
        getattr(proxy, fault)()
        loop = asyncio.get_running_loop()
        since_s, num_served = loop.time(), 1
        if (await ask(gateway)).status == 200:
            num_served += 1
        assert num_served == 2 or loop.time() - since_s > STALENESS_S / 2
        unknown = await ask(gateway, other.api_token)
        assert unknown.status == 503  # nobody can say whose it is
        assert int(unknown.headers["retry-after"]) >= 1

        async def is_distrusted() -> bool:
            nonlocal num_served
            reply = await ask(gateway)
            assert reply.status in (200, 503)
            num_served += reply.status == 200
            return reply.status == 503

        await wait_until_async(is_distrusted, BOUND_S)
        proxy.restore()

        async def is_served() -> bool:
            nonlocal num_served
            reply = await ask(gateway)
            num_served += reply.status == 200
            return reply.status == 200

        await wait_until_async(is_served, BOUND_S)  # without a restart
        records = await wait_for_ledger(gateway, num_served)
        assert len(records) == num_served
        await wait_for_sums(gateway, records)


@pytest.mark.skipif(not is_postgres_expected(), reason="no PostgreSQL is installed")
async def test_a_budget_whose_database_is_away_refuses_what_its_slice_does_not_cover(
    tmp_path: Path, database_url: str, node: ScriptedNode
) -> None:
    url = make_url(database_url)
    proxy = FaultProxy(str(url.host), url.port or 5432)
    async with (
        proxy.serve(),
        run_behind(proxy, database_url, tmp_path, node) as gateway,
    ):
        tenant = gateway.tenant
        scope = QuotaScope(tenant.account_id)
        await gateway.tenancy.set_quota(scope, QuotaLimits(spend_nano_per_month=10**9))
        await gateway.gateway._cache.poll_epoch()
        # Loads the principal and spends nothing.
        path = gateway.account_path("/ai/models/search")
        await gateway.send("GET", path, api_token=tenant.api_token)
        gateway.gateway._cache._settings = _patient(gateway)
        proxy.cut()
        refused = await ask(gateway)
        assert refused.status == 503  # not free, and not "used up"
        proxy.restore()
        assert (await ask(gateway)).status == 200
        proxy.slow_down(0.05)
        assert (await ask(gateway)).status == 200  # out of the slice: nobody asks the database
        records = await wait_for_ledger(gateway, 2)
        assert len(records) == 2


def _patient(gateway: RunningGateway) -> object:
    """The settings of the cache, but that it trusts what it knows for long."""
    import msgspec

    return msgspec.structs.replace(gateway.gateway._cache._settings, max_staleness_s=600.0)


@needs_redis
@pytest.mark.parametrize("fault", ["swallow", "cut", "slow"])
async def test_a_redis_that_misbehaves_brings_the_share_of_the_limit_and_goes_unnoticed_after(
    tmp_path: Path, database_template: Path, node: ScriptedNode, fault: str
) -> None:
    with run_redis(tmp_path) as server:
        proxy = FaultProxy("127.0.0.1", server.port)
        async with proxy.serve():
            shared = {
                "url": f"redis://127.0.0.1:{proxy.port}/0",
                "budget_s": 3.0,
                "max_failures": 2,
                "probe_pause_s": 0.2,
                "num_gateways": 4,
            }
            async with run_gateway(
                tmp_path, database_template, [node], shared_limits=shared
            ) as gateway:
                await set_limits(gateway, requests_per_min=8)
                limiter = gateway.gateway._bookkeeping.parts.limiter
                assert (await ask(gateway)).status == 200
                if fault == "slow":
                    proxy.slow_down(5.0)
                else:
                    getattr(proxy, fault)()
                replies = [await ask(gateway) for _ in range(6)]
                served = [reply for reply in replies if reply.status == 200]
                assert len(served) == 2  # of eight, for one of four gateways
                assert {reply.code for reply in replies if reply.status != 200} == {7429}
                assert not limiter._breaker.is_closed()  # type: ignore[attr-defined]
                proxy.restore()

                async def is_closed() -> bool:
                    return limiter._breaker.is_closed()  # type: ignore[attr-defined]

                await wait_until_async(is_closed, BOUND_S)
                assert (await ask(gateway)).status == 200  # the store has room: it counted one
                assert len(await wait_for_ledger(gateway, 4)) == 4
