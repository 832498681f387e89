"""What happens to rates and leases while the store they are counted in is away.

Owns the declared mode of each dimension: this process's share of the limit, counted here; refusal;
or no limit. A limit of zero stays zero in every mode. Must not know the store.
Read next: `gateway.admission.redis_limiter`.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from contracts.errors import StoreUnavailable
from contracts.quotas import Quota
from gateway.admission.limiter import DIMENSIONS, RateNeed, RateState
from gateway.admission.local_limiter import LocalLimiter
from gateway.settings import DegradedMode


class DegradedModes(msgspec.Struct, frozen=True, kw_only=True):
    """One mode for each dimension."""

    requests_per_min: DegradedMode = DegradedMode.SHARE
    tokens_per_min: DegradedMode = DegradedMode.SHARE
    concurrent_streams: DegradedMode = DegradedMode.SHARE


_REFUSAL: Final = "Limits cannot be checked right now."


class DegradedLimiter:
    """Decides instead of the store."""

    def __init__(self, local: LocalLimiter, modes: DegradedModes) -> None:
        """`local` counts this process's share."""
        self._local = local
        self._modes = modes
        self._held: dict[str, RateNeed] = {}
        """What was admitted here, as it was counted here."""

    async def reserve(self, need: RateNeed) -> RateState | None:
        """Reserves here. Raises: `LimitError` leaves, `StoreUnavailable`."""
        quotas = tuple(self._translate(quota) for quota in need.quotas)
        local = msgspec.structs.replace(need, quotas=quotas)
        state = await self._local.reserve(local)
        self._held[need.reservation_id] = local
        return state

    def holds(self, need: RateNeed) -> bool:
        """True for a request that was admitted here."""
        return need.reservation_id in self._held

    def correct(self, need: RateNeed, num_tokens: int) -> None:
        """Adds to what was counted here."""
        self._local.correct(self._held[need.reservation_id], num_tokens)

    def release(self, need: RateNeed) -> None:
        """Ends what is held here, if anything is."""
        held = self._held.pop(need.reservation_id, None)
        if held is not None:
            self._local.release(held)

    async def renew(self, needs: Sequence[RateNeed]) -> None:
        """Keeps leases that are held here."""
        await self._local.renew([self._held[need.reservation_id] for need in needs])

    def _translate(self, quota: Quota) -> Quota:
        """The limits that hold now. Raises: `StoreUnavailable`."""
        changes: dict[str, int | None] = {}
        for dimension in DIMENSIONS:
            limit: int | None = getattr(quota.limits, dimension)
            mode: DegradedMode = getattr(self._modes, dimension)
            if limit is None or limit == 0 or mode is DegradedMode.SHARE:
                continue
            if mode is DegradedMode.REFUSE:
                raise StoreUnavailable(_REFUSAL, retry_after_s=1)
            changes[dimension] = None
        return Quota(quota.scope, msgspec.structs.replace(quota.limits, **changes))
