"""Rates and leases in the memory of one gateway process.

Owns buckets and leases by scope. A reservation looks at every scope first and takes afterwards,
without waiting in between, so that it is one step. Leases that are not renewed end by themselves.
Read next: `gateway.admission.quota_arithmetic`.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from contracts.quotas import Quota, QuotaScope
from gateway.admission.limiter import RateNeed, RateState
from gateway.admission.quota_arithmetic import (
    UNITS,
    compute_owed,
    compute_remaining,
    compute_reset_s,
    compute_wait_ms,
)
from gateway.admission.refusals import create_refusal

REQUESTS: Final = "requests_per_min"
TOKENS: Final = "tokens_per_min"
STREAMS: Final = "concurrent_streams"
_MIN_SWEEP_SIZE: Final = 4096

_BucketKey = tuple[str, QuotaScope]


class LocalLimiter:
    """`Limiter` of a single process."""

    def __init__(self, now_ms: Callable[[], int], lease_ms: int, share: int = 1) -> None:
        """`now_ms` never goes back. `share` divides every limit, for one of several processes
        that have lost what they count in together.
        """
        self._now_ms = now_ms
        self._lease_ms = lease_ms
        self._share = share
        self._buckets: dict[_BucketKey, tuple[int, int, int]] = {}
        """What is owed, since when, and the limit that pays it back."""
        self._leases: dict[QuotaScope, dict[str, int]] = {}
        """When each reservation's lease ends."""
        self._sweep_size = _MIN_SWEEP_SIZE

    async def reserve(self, need: RateNeed) -> RateState | None:
        """Reserves on every scope, all or none. Raises: `LimitError` leaves."""
        now_ms = self._now_ms()
        taken: list[tuple[_BucketKey, int, int]] = []
        leases: list[QuotaScope] = []
        tightest: RateState | None = None
        for quota in need.quotas:
            limits = quota.limits
            if limits.requests_per_min is not None:
                limit = self._divide(limits.requests_per_min)
                owed = self._check(REQUESTS, quota, limit, 1, now_ms) + UNITS
                taken.append(((REQUESTS, quota.scope), owed, limit))
                left = compute_remaining(owed, limit)
                if tightest is None or left < tightest.num_left:
                    tightest = RateState(limit, left, compute_reset_s(owed, limit))
            if limits.tokens_per_min is not None:
                limit = self._divide(limits.tokens_per_min)
                owed = self._check(TOKENS, quota, limit, need.num_tokens, now_ms)
                taken.append(((TOKENS, quota.scope), owed + need.num_tokens * UNITS, limit))
            if limits.concurrent_streams is not None:
                self._check_streams(quota, limits.concurrent_streams, now_ms)
                leases.append(quota.scope)
        for key, owed, limit in taken:
            self._buckets[key] = (owed, now_ms, limit)
        for scope in leases:
            held = self._leases.setdefault(scope, {})
            held[need.reservation_id] = now_ms + self._lease_ms
        if len(self._buckets) > self._sweep_size:
            self._sweep(now_ms)
        return tightest

    def correct(self, need: RateNeed, num_tokens: int) -> None:
        """Adds `num_tokens`, which may be negative, to what the request's scopes have used."""
        now_ms = self._now_ms()
        for quota in need.quotas:
            if quota.limits.tokens_per_min is not None:
                key = (TOKENS, quota.scope)
                limit = self._divide(quota.limits.tokens_per_min)
                owed = self._read(key, limit, now_ms)
                self._buckets[key] = (max(0, owed + num_tokens * UNITS), now_ms, limit)

    def release(self, need: RateNeed) -> None:
        """Ends the request's leases. Idempotent."""
        for quota in need.quotas:
            held = self._leases.get(quota.scope)
            if held is not None:
                held.pop(need.reservation_id, None)
                if not held:
                    del self._leases[quota.scope]

    async def renew(self, needs: Sequence[RateNeed]) -> None:
        """Keeps the leases of requests that are still being served, even those that had ended."""
        ends_ms = self._now_ms() + self._lease_ms
        for need in needs:
            for quota in need.quotas:
                if quota.limits.concurrent_streams is not None:
                    held = self._leases.setdefault(quota.scope, {})
                    held[need.reservation_id] = ends_ms

    async def flush(self) -> None:
        """Everything is counted at once."""

    async def run(self) -> None:
        """Nothing is to be done."""
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Nothing is held."""

    def _divide(self, limit: int) -> int:
        """This process's share of a limit, at least one of it; nothing of nothing."""
        return limit if self._share == 1 else min(limit, max(1, limit // self._share))

    def _check(self, dimension: str, quota: Quota, limit: int, cost: int, now_ms: int) -> int:
        """What is owed now. Raises: `LimitError` leaves when `cost` has no room."""
        if limit == 0:
            raise create_refusal(dimension, quota.scope, limit, None)
        owed = self._read((dimension, quota.scope), limit, now_ms)
        wait_ms = compute_wait_ms(owed, cost, limit)
        if wait_ms:
            raise create_refusal(dimension, quota.scope, limit, wait_ms)
        return owed

    def _read(self, key: _BucketKey, limit: int, now_ms: int) -> int:
        """What a bucket owes now."""
        found = self._buckets.get(key)
        return 0 if found is None else compute_owed(found[0], limit, now_ms - found[1])

    def _check_streams(self, quota: Quota, whole: int, now_ms: int) -> None:
        """Raises `LimitError` leaves when the scope has no room for one lease more."""
        limit = self._divide(whole)
        held = self._leases.get(quota.scope, {})
        if len(held) < limit:
            return
        for ended in [name for name, ends_ms in held.items() if ends_ms <= now_ms]:
            del held[ended]
        if len(held) >= limit:
            raise create_refusal(STREAMS, quota.scope, limit, 0)

    def _sweep(self, now_ms: int) -> None:
        """Forgets buckets that owe nothing any more."""
        self._buckets = {
            key: bucket
            for key, bucket in self._buckets.items()
            if compute_owed(bucket[0], bucket[2], now_ms - bucket[1])
        }
        self._sweep_size = max(_MIN_SWEEP_SIZE, 2 * len(self._buckets))
