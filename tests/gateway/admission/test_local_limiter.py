"""The limiter of a single process keeps the contract of all limiters."""

import pytest

from gateway.admission.local_limiter import LocalLimiter
from tests.gateway.admission.limiter_contract import *  # noqa: F403 - the contract's own tests
from tests.gateway.admission.limiter_contract import LimiterBench
from tests.gateway.admission.limiter_words import OF_MODEL, OF_TOKEN, need, quota

LEASE_MS = 30_000


class ManualTime:
    """Milliseconds that the test moves."""

    def __init__(self) -> None:
        self.now_ms = 0

    async def advance(self, ms: int) -> None:
        """Moves on."""
        self.now_ms += ms


@pytest.fixture
def time() -> ManualTime:
    """Starts at zero."""
    return ManualTime()


@pytest.fixture
def bench(time: ManualTime) -> LimiterBench:
    """One process stands for both."""
    limiter = LocalLimiter(lambda: time.now_ms, LEASE_MS)
    return LimiterBench(limiter, limiter, time, LEASE_MS)


async def test_what_owes_nothing_any_more_is_forgotten_and_nothing_else(time: ManualTime) -> None:
    limiter = LocalLimiter(lambda: time.now_ms, LEASE_MS)
    in_debt, held = quota(tokens_per_min=1), quota(OF_MODEL, concurrent_streams=1)
    await limiter.reserve(need("big", in_debt, tokens=1000))
    running = need("running", held)
    await limiter.reserve(running)
    time.now_ms += 3_600_000
    for number in range(10_000):
        scope = type(OF_TOKEN)(OF_TOKEN.account_id, f"{number:032x}")
        await limiter.reserve(need(f"{number}", quota(scope, requests_per_min=60)))
        time.now_ms += 100
        await limiter.renew([running])
    assert len(limiter._uses) < 5000
    with pytest.raises(RateLimited):  # noqa: F405
        await limiter.reserve(need("more", in_debt))
    with pytest.raises(ConcurrencyLimited):  # noqa: F405
        await limiter.reserve(need("beside", held))


async def test_a_share_of_a_limit_is_at_least_one_and_of_nothing_nothing(time: ManualTime) -> None:
    limiter = LocalLimiter(lambda: time.now_ms, LEASE_MS, share=4)
    admitted = 0
    for number in range(10):
        try:
            await limiter.reserve(need(f"{number}", quota(requests_per_min=9)))
            admitted += 1
        except RateLimited:  # noqa: F405
            pass
    assert admitted == 2
    await limiter.reserve(need("a", quota(OF_TOKEN, requests_per_min=2)))
    with pytest.raises(QuotaExceeded):  # noqa: F405
        await limiter.reserve(need("b", quota(OF_TOKEN, requests_per_min=0)))
