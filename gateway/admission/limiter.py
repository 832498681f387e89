"""Rates and leases: the interface of whoever counts them, and what crosses it.

Owns the rule that every scope is reserved or none, and that what was reserved is returned once.
Implemented in process (`local_limiter`) and on Valkey or Redis (`redis_limiter`), both under the
same contract tests. Must not know prices or HTTP.
"""

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from contracts.quotas import Quota

DIMENSIONS: Final = ("requests_per_min", "tokens_per_min", "concurrent_streams")


class RateNeed(msgspec.Struct, frozen=True):
    """What one request reserves."""

    reservation_id: str
    quotas: tuple[Quota, ...]
    """Every scope that the request falls under."""
    num_tokens: int
    """A bound; corrected later."""


class RateState(msgspec.Struct, frozen=True):
    """Where the scope with the fewest requests left stands after a reservation."""

    limit: int
    num_left: int
    reset_s: int
    """Seconds until the whole limit is there again."""


class Limiter(Protocol):
    """Counts requests, tokens and streams."""

    @property
    def is_degraded(self) -> bool:
        """True while the store that it counts in is away."""
        ...

    async def reserve(self, need: RateNeed) -> RateState | None:
        """Reserves on every scope, all or none; None when no scope limits requests.

        Raises: `RateLimited`, `ConcurrencyLimited`, `QuotaExceeded` (a limit of zero),
        `StoreUnavailable`.
        """
        ...

    def correct(self, need: RateNeed, num_tokens: int) -> None:
        """Adds `num_tokens`, which may be negative, to what the request's scopes have used."""
        ...

    def release(self, need: RateNeed) -> None:
        """Ends the request's leases. Idempotent."""
        ...

    async def renew(self, needs: Sequence[RateNeed]) -> None:
        """Keeps the leases of requests that are still being served, even those that had ended."""
        ...

    async def flush(self) -> None:
        """Returns once all that was corrected and released is counted, as far as that can be."""
        ...

    async def run(self) -> None:
        """Does what must be done beside the requests, for ever."""
        ...

    async def close(self) -> None:
        """Counts what is left and lets go; nothing may follow."""
        ...
