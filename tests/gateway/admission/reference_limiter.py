"""A limiter as its definition says, without cleverness: exact fractions, every lease listed.

The real ones must agree with it step by step. Read next: `test_limiter_model`.
"""

from fractions import Fraction

from contracts.errors import ConcurrencyLimited, LimitError, QuotaExceeded, RateLimited
from contracts.quotas import QuotaScope
from gateway.admission.limiter import RateNeed

MINUTE_MS = 60_000


class ReferenceLimiter:
    """What a request may do, decided from the words of the documentation."""

    def __init__(self, lease_ms: int) -> None:
        self.now_ms = 0
        self._lease_ms = lease_ms
        self._debts: dict[tuple[str, QuotaScope], tuple[Fraction, int]] = {}
        self._leases: dict[QuotaScope, dict[str, int]] = {}

    def debt(self, dimension: str, scope: QuotaScope, limit: int) -> Fraction:
        """Requests or tokens that have been used and are not paid back by time yet."""
        debt, since_ms = self._debts.get((dimension, scope), (Fraction(0), 0))
        paid = Fraction(limit * (self.now_ms - since_ms), MINUTE_MS)
        return max(Fraction(0), debt - paid)

    def running(self, scope: QuotaScope) -> int:
        """Leases that stand."""
        held = self._leases.get(scope, {})
        return sum(ends_ms > self.now_ms for ends_ms in held.values())

    def judge(self, need: RateNeed) -> type[LimitError] | None:
        """The error of the first limit without room, None when all have some; takes nothing."""
        for quota in need.quotas:
            limits = quota.limits
            for dimension, limit, cost in (
                ("requests_per_min", limits.requests_per_min, 1),
                ("tokens_per_min", limits.tokens_per_min, need.num_tokens),
            ):
                if limit is None:
                    continue
                if limit == 0:
                    return QuotaExceeded
                if self.debt(dimension, quota.scope, limit) + min(cost, limit) > limit:
                    return RateLimited
            streams = limits.concurrent_streams
            if streams is not None and self.running(quota.scope) >= streams:
                return QuotaExceeded if streams == 0 else ConcurrencyLimited
        return None

    def take(self, need: RateNeed) -> None:
        """Notes an admitted request."""
        for quota in need.quotas:
            limits = quota.limits
            if limits.requests_per_min is not None:
                self._add("requests_per_min", quota.scope, limits.requests_per_min, 1)
            if limits.tokens_per_min is not None:
                self._add("tokens_per_min", quota.scope, limits.tokens_per_min, need.num_tokens)
            if limits.concurrent_streams is not None:
                held = self._leases.setdefault(quota.scope, {})
                held[need.reservation_id] = self.now_ms + self._lease_ms

    def correct(self, need: RateNeed, num_tokens: int) -> None:
        """Adds a signed number of tokens."""
        for quota in need.quotas:
            if quota.limits.tokens_per_min is not None:
                self._add("tokens_per_min", quota.scope, quota.limits.tokens_per_min, num_tokens)

    def release(self, need: RateNeed) -> None:
        """Ends leases."""
        for quota in need.quotas:
            self._leases.get(quota.scope, {}).pop(need.reservation_id, None)

    def _add(self, dimension: str, scope: QuotaScope, limit: int, number: int) -> None:
        debt = self.debt(dimension, scope, limit) + number
        self._debts[dimension, scope] = (max(Fraction(0), debt), self.now_ms)
