"""Random interleavings of everything a limiter can be asked, against the reference model."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.quotas import Quota, QuotaLimits
from gateway.admission.local_limiter import LocalLimiter
from gateway.admission.quota_arithmetic import UNITS, compute_owed, compute_wait_ms
from tests.gateway.admission.limiter_steps import Steps
from tests.gateway.admission.limiter_words import (
    OF_ACCOUNT,
    OF_MODEL,
    OF_SECOND_TOKEN,
    OF_TOKEN,
    need,
)
from tests.gateway.admission.reference_limiter import ReferenceLimiter

LEASE_MS = 5_000
LIMITS = st.one_of(st.none(), st.integers(0, 40))


class World(Steps):
    """The limiter of one process and the model, on one clock."""

    def __init__(self) -> None:
        model = ReferenceLimiter(LEASE_MS)
        super().__init__(model, LocalLimiter(lambda: model.now_ms, LEASE_MS))


@pytest.mark.parametrize("seed", range(8))
async def test_ten_thousand_steps_agree_with_the_model(seed: int) -> None:
    counts = await World().run(random.Random(seed), 10_000)
    assert min(counts.values()) > 100, counts  # both happened, or nothing was tested


@given(st.integers(1, 10**9), st.integers(0, 10**15), st.integers(1, 10**7), st.integers(0, 10**7))
def test_waiting_as_long_as_advised_is_enough_and_no_shorter_wait_is(
    limit: int, owed: int, cost: int, elapsed_ms: int
) -> None:
    left = compute_owed(owed, limit, elapsed_ms)
    wait_ms = compute_wait_ms(left, cost, limit)
    assert compute_wait_ms(compute_owed(left, limit, wait_ms), cost, limit) == 0
    if wait_ms:
        assert compute_wait_ms(compute_owed(left, limit, wait_ms - 1), cost, limit) > 0


@given(st.integers(1, 10**6), st.lists(st.integers(0, 90_000), max_size=60))
@settings(max_examples=200)
def test_paying_back_in_pieces_is_paying_back_at_once(limit: int, pauses_ms: list[int]) -> None:
    owed = 17 * limit * UNITS // 10
    piecewise = owed
    for pause_ms in pauses_ms:
        piecewise = compute_owed(piecewise, limit, pause_ms)
    assert piecewise == compute_owed(owed, limit, sum(pauses_ms))


@given(st.lists(st.tuples(LIMITS, LIMITS, LIMITS), min_size=1, max_size=4))
async def test_a_refused_request_takes_nothing_anywhere(
    limits: list[tuple[int | None, ...]],
) -> None:
    names = ("requests_per_min", "tokens_per_min", "concurrent_streams")
    scopes = (OF_ACCOUNT, OF_MODEL, OF_TOKEN, OF_SECOND_TOKEN)
    quotas = tuple(
        Quota(scope, QuotaLimits(**dict(zip(names, each, strict=True))))
        for scope, each in zip(scopes, limits, strict=False)
    )
    world = World()
    for number in range(50):
        if not await world.reserve(need(f"{number}", *quotas, tokens=3)):
            # What the model did not take, the limiter must not have taken: it would refuse sooner.
            world.model.now_ms += 10
