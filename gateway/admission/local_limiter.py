"""Rates and leases in the memory of one gateway process.

Owns what each scope has used, in one object. A reservation looks at every scope first and takes
afterwards, without waiting in between, so that it is one step. Leases that are not renewed end by
themselves.
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


class _Use:
    """What one scope has used."""

    __slots__ = ("leases", "requests", "tokens")

    def __init__(self) -> None:
        """Nothing yet."""
        self.requests = _Debt()
        self.tokens = _Debt()
        self.leases: dict[str, int] = {}
        """When each reservation's lease ends."""

    def is_over(self, now_ms: int) -> bool:
        """True when nothing is owed and nothing held any more."""
        return not (
            self.requests.read(self.requests.limit, now_ms)
            or self.tokens.read(self.tokens.limit, now_ms)
            or any(ends_ms > now_ms for ends_ms in self.leases.values())
        )


class _Debt:
    """What is owed to one bucket, since when, and the limit that pays it back."""

    __slots__ = ("limit", "owed", "since_ms")

    def __init__(self) -> None:
        """Nothing."""
        self.owed = self.since_ms = self.limit = 0

    def read(self, limit: int, now_ms: int) -> int:
        """What is owed now."""
        return compute_owed(self.owed, limit, now_ms - self.since_ms) if self.owed else 0

    def add(self, units: int, limit: int, now_ms: int) -> None:
        """So much more is owed, or less."""
        owed = compute_owed(self.owed, limit, now_ms - self.since_ms) + units
        self.owed, self.limit, self.since_ms = max(0, owed), limit, now_ms

    def write(self, owed: int, limit: int, now_ms: int) -> None:
        """So much is owed from now on."""
        self.owed = max(0, owed)
        self.limit = limit
        self.since_ms = now_ms


class LocalLimiter:
    """`Limiter` of a single process."""

    def __init__(self, now_ms: Callable[[], int], lease_ms: int, share: int = 1) -> None:
        """`now_ms` never goes back. `share` divides every limit, for one of several processes
        that have lost what they count in together.
        """
        self._now_ms = now_ms
        self._lease_ms = lease_ms
        self._share = share
        self._uses: dict[QuotaScope, _Use] = {}
        self._sweep_size = _MIN_SWEEP_SIZE

    @property
    def is_degraded(self) -> bool:
        """False: it counts here and nowhere else."""
        return False

    @property
    def num_leases(self) -> int:
        """Leases that nobody has released, those that have ended by themselves included."""
        return sum(len(use.leases) for use in self._uses.values())

    async def reserve(self, need: RateNeed) -> RateState | None:
        """Reserves on every scope, all or none. Raises: `LimitError` leaves."""
        now_ms = self._now_ms()
        debts: list[tuple[_Debt, int, int]] = []
        leases: list[dict[str, int]] = []
        tightest: RateState | None = None
        for quota in need.quotas:
            limits, use = quota.limits, self._find(quota.scope)
            if limits.requests_per_min is not None:
                limit = self._divide(limits.requests_per_min)
                owed = _check(REQUESTS, quota, limit, 1, use.requests.read(limit, now_ms)) + UNITS
                debts.append((use.requests, owed, limit))
                left = compute_remaining(owed, limit)
                if tightest is None or left < tightest.num_left:
                    tightest = RateState(limit, left, compute_reset_s(owed, limit))
            if limits.tokens_per_min is not None:
                limit = self._divide(limits.tokens_per_min)
                owed = use.tokens.read(limit, now_ms)
                _check(TOKENS, quota, limit, need.num_tokens, owed)
                debts.append((use.tokens, owed + need.num_tokens * UNITS, limit))
            if limits.concurrent_streams is not None:
                limit = self._divide(limits.concurrent_streams)
                if len(use.leases) >= limit:
                    _require_place(quota, limit, use.leases, now_ms)
                leases.append(use.leases)
        for debt, owed, limit in debts:
            debt.write(owed, limit, now_ms)
        for held in leases:
            held[need.reservation_id] = now_ms + self._lease_ms
        if len(self._uses) > self._sweep_size:
            self._sweep(now_ms)
        return tightest

    def correct(self, need: RateNeed, num_tokens: int) -> None:
        """Adds `num_tokens`, which may be negative, to what the request's scopes have used."""
        now_ms = self._now_ms()
        for quota in need.quotas:
            if quota.limits.tokens_per_min is not None:
                limit = self._divide(quota.limits.tokens_per_min)
                self._find(quota.scope).tokens.add(num_tokens * UNITS, limit, now_ms)

    def release(self, need: RateNeed) -> None:
        """Ends the request's leases. Idempotent."""
        for quota in need.quotas:
            use = self._uses.get(quota.scope)
            if use is not None:
                use.leases.pop(need.reservation_id, None)

    async def renew(self, needs: Sequence[RateNeed]) -> None:
        """Keeps the leases of requests that are still being served, even those that had ended."""
        ends_ms = self._now_ms() + self._lease_ms
        for need in needs:
            for quota in need.quotas:
                if quota.limits.concurrent_streams is not None:
                    self._find(quota.scope).leases[need.reservation_id] = ends_ms

    async def flush(self) -> None:
        """Everything is counted at once."""

    async def run(self) -> None:
        """Nothing is to be done."""
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Nothing is held."""

    def _find(self, scope: QuotaScope) -> _Use:
        """What the scope has used; one that is new has used nothing."""
        use = self._uses.get(scope)
        if use is None:
            use = self._uses[scope] = _Use()
        return use

    def _divide(self, limit: int) -> int:
        """This process's share of a limit, at least one of it; nothing of nothing."""
        return limit if self._share == 1 else min(limit, max(1, limit // self._share))

    def _sweep(self, now_ms: int) -> None:
        """Forgets scopes that owe and hold nothing any more."""
        self._uses = {scope: use for scope, use in self._uses.items() if not use.is_over(now_ms)}
        self._sweep_size = max(_MIN_SWEEP_SIZE, 2 * len(self._uses))


def _check(dimension: str, quota: Quota, limit: int, cost: int, owed: int) -> int:
    """`owed` again. Raises: `LimitError` leaves when `cost` has no room beside it."""
    wait_ms = compute_wait_ms(owed, cost, limit) if limit else None
    if wait_ms == 0:
        return owed
    raise create_refusal(dimension, quota.scope, limit, wait_ms)


def _require_place(quota: Quota, limit: int, held: dict[str, int], now_ms: int) -> None:
    """Forgets leases that have ended. Raises: `LimitError` leaves when too many stand."""
    for ended in [name for name, ends_ms in held.items() if ends_ms <= now_ms]:
        del held[ended]
    if len(held) >= limit:
        raise create_refusal(STREAMS, quota.scope, limit, 0)
