"""Everything that decides on admission, put together.

Owns the choice of where rates and leases are counted: in this process, or in Valkey or Redis.
Read next: `gateway.admission.admission`, `gateway.admission.redis_limiter`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gateway.admission.admission import Admission
from gateway.admission.breaker import Breaker
from gateway.admission.degraded_limiter import DegradedLimiter, DegradedModes
from gateway.admission.limiter import Limiter
from gateway.admission.local_limiter import LocalLimiter
from gateway.admission.price_book import PriceBook
from gateway.admission.redis_limiter import RedisLimiter
from gateway.admission.slices import BudgetSlices
from gateway.settings import SharedLimitSettings
from gateway.sources import Sources
from gateway.store_client import create_redis
from tenancy.interfaces import TenancyDirectory

LEASE_S: Final = 30.0
"""A place whose process has died is free again after so long."""
RENEWALS_PER_LEASE: Final = 3


@dataclass(frozen=True, slots=True)
class AdmissionParts:
    """Admission and what it asks."""

    admission: Admission
    limiter: Limiter
    prices: PriceBook
    slices: BudgetSlices
    renew_s: float
    """How often the leases of running requests are renewed."""


def create_admission(
    settings: SharedLimitSettings | None,
    tenancy: TenancyDirectory,
    boot: str,
    is_journal_empty: Callable[[], bool],
    sources: Sources,
) -> AdmissionParts:
    """Admission for the process whose life is named `boot`; nothing is connected yet."""

    def now_ms() -> int:
        return int(sources.monotonic_s() * 1000)

    prices = PriceBook(tenancy)
    limiter = create_limiter(settings, now_ms, sources)
    slices = BudgetSlices(tenancy, boot, now_ms, is_journal_empty)
    lease_s = LEASE_S if settings is None else settings.lease_s
    return AdmissionParts(
        Admission(prices, limiter, slices), limiter, prices, slices, lease_s / RENEWALS_PER_LEASE
    )


def create_limiter(
    settings: SharedLimitSettings | None, now_ms: Callable[[], int], sources: Sources
) -> Limiter:
    """The limiter that the settings ask for; nothing is connected yet."""
    if settings is None:
        return LocalLimiter(now_ms, int(LEASE_S * 1000))
    lease_ms = int(settings.lease_s * 1000)
    modes = DegradedModes(
        requests_per_min=settings.requests_without_store,
        tokens_per_min=settings.tokens_without_store,
        concurrent_streams=settings.streams_without_store,
    )
    return RedisLimiter(
        create_redis(settings.url.reveal(), settings.budget_s),
        lease_ms=lease_ms,
        budget_s=settings.budget_s,
        breaker=Breaker(sources.monotonic_s, settings.max_failures, settings.probe_pause_s),
        degraded=DegradedLimiter(LocalLimiter(now_ms, lease_ms, settings.num_gateways), modes),
    )
