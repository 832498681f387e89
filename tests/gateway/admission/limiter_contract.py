"""What every limiter promises, whatever it counts in: `test_local_limiter`, `test_redis_limiter`.

Each test takes `bench`: limiters of two processes that count together, and time that moves.
"""

import asyncio
from dataclasses import dataclass
from typing import Protocol

import pytest

from contracts.errors import ConcurrencyLimited, QuotaExceeded, RateLimited
from gateway.admission.limiter import Limiter, RateNeed
from tests.gateway.admission.limiter_words import (
    OF_MODEL,
    OF_SECOND_TOKEN,
    OF_TOKEN,
    need,
    quota,
)


class Time(Protocol):
    """Moves on."""

    async def advance(self, ms: int) -> None: ...


@dataclass
class LimiterBench:
    """What a test works with."""

    first: Limiter
    second: Limiter
    """Of another process; the same one where there is but one."""
    time: Time
    lease_ms: int


async def count_admitted(bench: LimiterBench, needs: list[RateNeed]) -> int:
    """How many of `needs` are admitted when all come at once, to both processes in turn."""

    async def try_one(number: int) -> bool:
        limiter = (bench.first, bench.second)[number % 2]
        try:
            await limiter.reserve(needs[number])
        except (RateLimited, ConcurrencyLimited, QuotaExceeded):
            return False
        return True

    return sum(await asyncio.gather(*(try_one(number) for number in range(len(needs)))))


@pytest.mark.parametrize("dimension", ["requests_per_min", "concurrent_streams"])
async def test_of_many_at_once_no_more_are_admitted_than_fit(
    bench: LimiterBench, dimension: str
) -> None:
    limit = quota(**{dimension: 7})
    wanted = [need(f"{number}", limit) for number in range(60)]
    assert await count_admitted(bench, wanted) == 7


async def test_of_many_at_once_no_more_tokens_are_admitted_than_fit(bench: LimiterBench) -> None:
    limit = quota(tokens_per_min=100)
    wanted = [need(f"{number}", limit, tokens=30) for number in range(40)]
    assert await count_admitted(bench, wanted) == 3


async def test_zero_is_a_limit_and_waiting_does_not_help(bench: LimiterBench) -> None:
    for dimension in ("requests_per_min", "tokens_per_min", "concurrent_streams"):
        with pytest.raises(QuotaExceeded):
            await bench.first.reserve(need("1", quota(**{dimension: 0})))


async def test_without_limits_everything_is_admitted(bench: LimiterBench) -> None:
    for number in range(50):
        assert await bench.first.reserve(need(f"{number}", quota())) is None
    assert await bench.first.reserve(need("x")) is None


async def test_all_scopes_are_reserved_or_none(bench: LimiterBench) -> None:
    narrow, wide = quota(OF_TOKEN, requests_per_min=1), quota(requests_per_min=3)
    await bench.first.reserve(need("1", wide, narrow))
    for number in range(5):
        with pytest.raises(RateLimited):
            await bench.second.reserve(need(f"refused-{number}", wide, narrow))
    other = quota(OF_SECOND_TOKEN, requests_per_min=9)
    assert await count_admitted(bench, [need(f"o{n}", wide, other) for n in range(5)]) == 2


async def test_a_refusal_names_the_scope_its_limit_and_when_to_come_back(
    bench: LimiterBench,
) -> None:
    limit = quota(OF_TOKEN, requests_per_min=2)
    await count_admitted(bench, [need("1", limit), need("2", limit)])
    with pytest.raises(RateLimited) as refusal:
        await bench.first.reserve(need("3", limit))
    assert "this API token" in refusal.value.message
    assert refusal.value.limit == 2
    assert refusal.value.retry_after_s is not None
    assert 20 < refusal.value.retry_after_s <= 30
    full = quota(OF_MODEL, concurrent_streams=1)
    await bench.first.reserve(need("4", full))
    with pytest.raises(ConcurrencyLimited) as other:
        await bench.second.reserve(need("5", full))
    assert "this account on @hearth/tests/small" in other.value.message


async def test_the_state_tells_what_is_left_of_the_tightest_limit(bench: LimiterBench) -> None:
    quotas = (quota(requests_per_min=60), quota(OF_TOKEN, requests_per_min=10))
    state = await bench.first.reserve(need("1", *quotas))
    assert state is not None
    assert (state.limit, state.num_left, state.reset_s) == (10, 9, 6)
    state = await bench.second.reserve(need("2", *quotas))
    assert state is not None
    assert state.num_left == 8


async def test_what_was_reserved_too_much_is_given_back(bench: LimiterBench) -> None:
    limit = quota(tokens_per_min=100)
    first = need("1", limit, tokens=100)
    await bench.first.reserve(first)
    with pytest.raises(RateLimited):
        await bench.second.reserve(need("2", limit, tokens=50))
    bench.first.correct(first, -90)
    await settle(bench)
    await bench.second.reserve(need("3", limit, tokens=50))


async def test_what_was_used_beyond_the_bound_is_a_debt(bench: LimiterBench) -> None:
    limit = quota(tokens_per_min=600)
    first = need("1", limit, tokens=10)
    await bench.first.reserve(first)
    bench.first.correct(first, 1000)
    await settle(bench)
    with pytest.raises(RateLimited) as refusal:
        await bench.second.reserve(need("2", limit, tokens=10))
    assert refusal.value.retry_after_s is not None
    assert 40 < refusal.value.retry_after_s <= 43


async def test_a_request_larger_than_the_whole_limit_may_start_when_nothing_is_owed(
    bench: LimiterBench,
) -> None:
    limit = quota(tokens_per_min=100)
    await bench.first.reserve(need("1", limit, tokens=150))
    with pytest.raises(RateLimited):
        await bench.second.reserve(need("2", limit, tokens=1))


async def test_a_released_place_is_free_and_only_once(bench: LimiterBench) -> None:
    limit = quota(concurrent_streams=2)
    one, two = need("1", limit), need("2", limit)
    await bench.first.reserve(one)
    await bench.first.reserve(two)
    for _ in range(3):
        bench.first.release(one)
    await settle(bench)
    assert await count_admitted(bench, [need(f"n{number}", limit) for number in range(6)]) == 1


async def test_leases_that_nobody_renews_end_and_renewed_ones_do_not(bench: LimiterBench) -> None:
    limit = quota(concurrent_streams=2)
    kept, abandoned = need("kept", limit), need("abandoned", limit)
    await bench.first.reserve(kept)
    await bench.first.reserve(abandoned)
    for _ in range(3):
        await bench.time.advance(bench.lease_ms // 2)
        await renew(bench, [kept])
    assert await count_admitted(bench, [need(f"n{number}", limit) for number in range(6)]) == 1


async def renew(bench: LimiterBench, needs: list[RateNeed]) -> None:
    """Renews and waits until it is done."""
    await bench.first.renew(needs)


async def settle(bench: LimiterBench) -> None:
    """Waits until what was only handed over is done."""
    await bench.first.flush()
