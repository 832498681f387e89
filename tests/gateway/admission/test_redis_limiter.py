"""The limiter of several processes keeps the contract of all limiters, on a real server."""

import asyncio
import random
import re
import time as clock
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from importlib import resources
from pathlib import Path

import pytest

from contracts.errors import (
    ConcurrencyLimited,
    LimitError,
    QuotaExceeded,
    RateLimited,
    StoreUnavailable,
)
from contracts.quotas import Quota
from gateway.admission.breaker import Breaker
from gateway.admission.degraded_limiter import DegradedLimiter, DegradedModes
from gateway.admission.local_limiter import LocalLimiter
from gateway.admission.redis_limiter import RedisLimiter
from gateway.settings import DegradedMode
from gateway.store_client import create_redis
from tests.fixtures.fault_proxy import FaultProxy
from tests.fixtures.redis_server import RedisServer, needs_redis, run_redis
from tests.gateway.admission.limiter_contract import *  # noqa: F403 - the contract's own tests
from tests.gateway.admission.limiter_contract import LimiterBench
from tests.gateway.admission.limiter_steps import Steps
from tests.gateway.admission.limiter_words import need, quota
from tests.gateway.admission.reference_limiter import ReferenceLimiter

pytestmark = needs_redis
LEASE_MS = 1_000
CONTRACT_BUDGET_S = 5.0
"""Far above the product's 50 ms: the contract is about what is counted, on any machine."""
PAUSE_S = 0.1
SERVER_TIME = "redis.call('TIME')"


class RealTime:
    """The server's own time, which nobody can move."""

    async def advance(self, ms: int) -> None:
        """Waits."""
        await asyncio.sleep(ms / 1000)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[RedisServer]:
    """One server for all tests; each empties it."""
    with run_redis(tmp_path_factory.mktemp("redis")) as running:
        yield running


@asynccontextmanager
async def open_limiter(
    url: str,
    budget_s: float = CONTRACT_BUDGET_S,
    modes: DegradedModes | None = None,
    share: int = 2,
) -> AsyncGenerator[RedisLimiter]:
    """A limiter as a gateway process has it, its probe running."""
    local = LocalLimiter(lambda: int(clock.monotonic() * 1000), LEASE_MS, share)
    limiter = RedisLimiter(
        create_redis(url, budget_s),
        lease_ms=LEASE_MS,
        budget_s=budget_s,
        breaker=Breaker(clock.monotonic, 3, PAUSE_S),
        degraded=DegradedLimiter(local, modes or DegradedModes()),
    )
    probe = asyncio.create_task(limiter.run())
    try:
        yield limiter
    finally:
        probe.cancel()
        await asyncio.gather(probe, return_exceptions=True)
        await limiter.close()


@pytest.fixture
async def bench(server: RedisServer) -> AsyncGenerator[LimiterBench]:
    """Two limiters over one server."""
    redis = create_redis(server.url, CONTRACT_BUDGET_S)
    await redis.flushall()
    await redis.aclose()
    async with open_limiter(server.url) as first, open_limiter(server.url) as second:
        yield LimiterBench(first, second, RealTime(), LEASE_MS)


class RedisSteps(Steps):
    """The script as it is, but for its clock, which is a key that the test sets."""

    def __init__(self, limiter: RedisLimiter) -> None:
        super().__init__(ReferenceLimiter(LEASE_MS), limiter)
        text = resources.files("gateway.admission").joinpath("reserve.lua").read_text()
        assert text.count(SERVER_TIME) == 1
        text = text.replace(
            SERVER_TIME, "redis.call('MGET', '{hearth:limits}:s', '{hearth:limits}:us')"
        )
        self.redis = limiter._redis
        limiter._script = self.redis.register_script(re.sub(r"redis.call..PEXPIRE.*", "", text))
        self.model.now_ms = 1_700_000_000_000

    async def set_time(self) -> None:
        seconds, ms = divmod(self.model.now_ms, 1000)
        await self.redis.mset({"{hearth:limits}:s": seconds, "{hearth:limits}:us": ms * 1000})


@pytest.mark.parametrize("seed", range(2))
async def test_ten_thousand_steps_agree_with_the_model(bench: LimiterBench, seed: int) -> None:
    assert isinstance(bench.first, RedisLimiter)
    steps = RedisSteps(bench.first)
    await steps.set_time()
    counts = await steps.run(random.Random(seed), 10_000)
    assert min(counts.values()) > 100, counts


async def test_requests_that_come_together_share_a_call(bench: LimiterBench) -> None:
    limiter = bench.first
    assert isinstance(limiter, RedisLimiter)
    before = await _count_scripts(limiter)
    wide = quota(requests_per_min=10**6)
    await asyncio.gather(*(limiter.reserve(need(f"{n}", wide)) for n in range(200)))
    assert await _count_scripts(limiter) - before <= 3


async def _count_scripts(limiter: RedisLimiter) -> int:
    stats = await limiter._redis.info("commandstats")
    return sum(
        stats.get(name, {"calls": 0})["calls"] for name in ("cmdstat_evalsha", "cmdstat_eval")
    )


@pytest.mark.parametrize("mode", list(DegradedMode))
async def test_a_dead_server_brings_the_declared_mode_and_a_live_one_ends_it(
    tmp_path: Path, mode: DegradedMode
) -> None:
    modes = DegradedModes(requests_per_min=mode)
    limit = quota(requests_per_min=6)
    with run_redis(tmp_path) as server:
        async with open_limiter(server.url, modes=modes) as limiter:
            await limiter.reserve(need("before", limit))
            assert not limiter.is_degraded  # the control
            server.kill()
            results = [await _try(limiter, f"{n}", limit) for n in range(12)]
            expected = {
                DegradedMode.SHARE: [None] * 3 + [RateLimited] * 9,
                DegradedMode.REFUSE: [StoreUnavailable] * 12,
                DegradedMode.ADMIT: [None] * 12,
            }
            assert results == expected[mode]
            assert limiter.is_degraded
            assert await _try(limiter, "zero", quota(requests_per_min=0)) is QuotaExceeded
            server.start()
            async with asyncio.timeout(20):
                while limiter.is_degraded:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            back = [await _try(limiter, f"back-{n}", limit) for n in range(8)]
            assert back == [None] * 6 + [RateLimited] * 2  # what it had counted is gone with it


async def _try(limiter: RedisLimiter, name: str, limit: Quota) -> type[Exception] | None:
    try:
        await limiter.reserve(need(name, limit))
    except (LimitError, StoreUnavailable) as error:
        return type(error)
    return None


async def test_a_black_hole_costs_no_more_than_the_budget_and_then_nothing(
    server: RedisServer,
) -> None:
    limit, waits_s = quota(requests_per_min=1000), []
    async with (
        _black_hole() as port,
        open_limiter(f"redis://127.0.0.1:{port}/0", budget_s=0.05) as limiter,
    ):
        for number in range(50):
            began_s = clock.monotonic()
            await limiter.reserve(need(f"{number}", limit))
            waits_s.append(clock.monotonic() - began_s)
    # Each call that fails takes the budget; without the breaker every request would wait for one.
    assert sum(wait_s >= 0.05 for wait_s in waits_s) < 25


@asynccontextmanager
async def _black_hole() -> AsyncGenerator[int]:
    """A port that accepts, reads and never answers."""

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65536):
            pass
        writer.close()

    hole = await asyncio.start_server(swallow, "127.0.0.1", 0)
    try:
        yield hole.sockets[0].getsockname()[1]
    finally:
        hole.close()


async def test_nobody_waits_for_a_store_that_speaks_another_protocol() -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65536):
            writer.write(b"$abc\r\n")
        writer.close()

    async with await asyncio.start_server(babble, "127.0.0.1", 0) as liar:
        url = f"redis://127.0.0.1:{liar.sockets[0].getsockname()[1]}/0"
        async with open_limiter(url) as limiter, asyncio.timeout(10):
            for number in range(5):
                await limiter.reserve(need(f"{number}", quota(requests_per_min=1000)))


@pytest.mark.parametrize(
    "answers", ["{}", "{{}}", "{{9, 9, 9}}", "{{1, 4, 0}}", "{{0, 1}}", "{{-1, 1, 1}}", "{1}"]
)
async def test_a_store_that_answers_nonsense_counts_as_one_that_fails(
    server: RedisServer, answers: str
) -> None:
    """The share of the limit applies, as where the store is away; the control has sense."""
    async with open_limiter(server.url) as limiter:
        limiter._script = limiter._redis.register_script(f"return cmsgpack.pack({answers})")
        for number in range(3):
            state = await limiter.reserve(need(f"n{number}", quota(requests_per_min=1000)))
            assert state is not None
            assert state.limit == 500
        assert limiter.is_degraded
    async with open_limiter(server.url) as limiter:
        state = await limiter.reserve(need("sense", quota(requests_per_min=1000)))
        assert state is not None
        assert state.limit == 1000


async def test_a_cut_connection_leaks_no_place(server: RedisServer) -> None:
    proxy = FaultProxy("127.0.0.1", server.port)
    async with proxy.serve():
        url = f"redis://127.0.0.1:{proxy.port}/1"
        async with open_limiter(url, budget_s=1.0) as limiter:
            limit = quota(concurrent_streams=4)
            running = [need(f"{n}", limit) for n in range(4)]
            for one in running:
                await limiter.reserve(one)
            proxy.cut()
            for one in running:
                limiter.release(one)
            await limiter.flush()
            assert await _try(limiter, "away", limit) is None  # its share, while the store is away
            proxy.restore()
            async with asyncio.timeout(20):
                # At the latest when the leases end.
                while await _try_in_store(limiter, limit):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)


async def _try_in_store(limiter: RedisLimiter, limit: Quota) -> bool:
    """False once the store itself has room again for all four."""
    if not limiter._breaker.is_closed():
        return True
    names = [need(f"again-{clock.monotonic()}-{n}", limit) for n in range(4)]
    held = []
    try:
        for one in names:
            await limiter.reserve(one)
            held.append(one)
    except (ConcurrencyLimited, StoreUnavailable):
        return True
    finally:
        for one in held:
            limiter.release(one)
        await limiter.flush()
    return any(limiter._degraded.holds(one) for one in held)


async def test_who_leaves_before_being_asked_for_keeps_no_place(bench: LimiterBench) -> None:
    """A cancellation in the moment between the question and the call that would carry it."""
    limit = quota(concurrent_streams=1)
    for number in range(5):
        gone = asyncio.create_task(bench.first.reserve(need(f"gone-{number}", limit)))
        await asyncio.sleep(0)  # the question is noted, and nothing is sent yet
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
    await bench.first.flush()
    await bench.second.reserve(need("next", limit))
    with pytest.raises(ConcurrencyLimited):  # the control
        await bench.first.reserve(need("one more", limit))
