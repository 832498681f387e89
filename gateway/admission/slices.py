"""Budgets of days and months, spent from slices that the database has leased to this process.

Owns the slices and what requests hold of them. Looking and taking is one step in memory; only a
slice that does not suffice is worth a question to the database. With the database away, slices
serve until their lease ends; after that, budgets refuse.
Read next: `tenancy.interfaces.BudgetStore`.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import structlog

from contracts.budgets import BudgetKey, BudgetKind, compute_wait_s, read_period
from contracts.errors import LimitError, ServiceError
from contracts.ids import RequestId
from contracts.pricing import MICRO, Charge, format_exact_money
from contracts.quotas import Quota
from gateway.admission.refusals import create_refusal, create_shortage
from gateway.admission.reservation import NO_HOLD, BudgetHold
from tenancy.interfaces import BudgetStore

log = structlog.get_logger(__name__)
LEASE_MS: Final = 60_000
RENEW_S: Final = 15.0
MARGIN_MS: Final = 5_000
"""Before the database lets go of a slice, this process has."""
IDLE_MS: Final = 30_000
SLICES_PER_BUDGET: Final = 64
"""A slice is this part of the budget, or what a request needs."""
_DIMENSIONS: Final = {
    BudgetKind.NEURONS: "neurons_per_day",
    BudgetKind.SPEND: "spend_nano_per_month",
}


@dataclass(slots=True)
class _Slice:
    """What this process may spend of one budget."""

    key: BudgetKey
    limit: int
    left: int = 0
    """Neither spent nor given back; what requests hold is a part of it."""
    held: int = 0
    valid_until_ms: int = 0
    used_ms: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class BudgetSlices:
    """`Budgets` on leased slices."""

    def __init__(
        self,
        store: BudgetStore,
        owner: str,
        now_ms: Callable[[], int],
        is_journal_empty: Callable[[], bool],
    ) -> None:
        """`owner` is this life of the process, `now_ms` never goes back. A slice is given back
        only while the ledger has everything that was spent of it.
        """
        self._store = store
        self._owner = owner
        self._now_ms = now_ms
        self._is_journal_empty = is_journal_empty
        self._slices: dict[BudgetKey, _Slice] = {}

    async def hold(
        self, quotas: tuple[Quota, ...], charge: Charge, request_id: RequestId
    ) -> BudgetHold:
        """Holds `charge` in every budget, all or none.

        Raises: `QuotaExceeded`, `StoreUnavailable`.
        """
        budgets = _list_budgets(quotas, request_id)
        if not budgets:
            return NO_HOLD
        while True:
            now_ms = self._now_ms()
            slices = [self._find(key, limit, now_ms) for key, limit in budgets]
            for budget in slices:
                if not _has_room(budget, charge, now_ms):
                    await self._lease(budget, _amount(budget.key.kind, charge), request_id)
                    break
            else:
                return _Hold(slices, charge, now_ms)

    def _find(self, key: BudgetKey, limit: int, now_ms: int) -> _Slice:
        """The slice of a budget; one that was lost begins anew and what it had counts no more.

        One that has never been leased is left alone: its first lease may be under way.
        """
        found = self._slices.get(key)
        if found is None:
            found = self._slices[key] = _Slice(key, limit)
        elif 0 < found.valid_until_ms <= now_ms:
            found = self._slices[key] = _Slice(key, limit, lock=found.lock)
        found.limit = limit
        return found

    async def _lease(self, budget: _Slice, amount: int, request_id: RequestId) -> None:
        """Makes the slice large enough. Raises: `QuotaExceeded`, `StoreUnavailable`."""
        if budget.limit == 0:
            raise _refuse(budget, request_id, amount)
        # Shielded: what the database grants is noted here, whether or not anybody still waits.
        await asyncio.shield(asyncio.ensure_future(self._extend(budget, amount, request_id)))

    async def _extend(self, budget: _Slice, amount: int, request_id: RequestId) -> None:
        """The same, to be carried to its end."""
        async with budget.lock:
            now_ms = self._now_ms()
            budget = self._find(budget.key, budget.limit, now_ms)  # it may have been lost meanwhile
            missing = amount - (budget.left - budget.held)
            is_valid = budget.valid_until_ms > now_ms
            if missing <= 0 and is_valid:
                return
            wanted = max(missing, budget.limit // SLICES_PER_BUDGET)
            asked_ms = self._now_ms()
            granted = await self._store.lease_budget(
                budget.key, self._owner, budget.limit, wanted, LEASE_MS
            )
            budget.left += granted
            budget.valid_until_ms = asked_ms + LEASE_MS - MARGIN_MS
        if granted < missing:
            raise _refuse(budget, request_id, amount)

    async def run(self) -> None:
        """Renews leases and gives back what is idle, for ever."""
        while True:
            await asyncio.sleep(RENEW_S)
            try:
                await self.renew()
            except ServiceError as error:
                log.warning("budgets_not_renewed", error=type(error).__name__)

    async def renew(self) -> None:
        """Renews every lease that still stands. Raises: `StoreUnavailable`."""
        asked_ms = self._now_ms()
        standing = [s for s in self._slices.values() if s.valid_until_ms > asked_ms]
        if standing:
            await self._store.renew_budgets(self._owner, LEASE_MS)
        for budget in standing:
            budget.valid_until_ms = max(budget.valid_until_ms, asked_ms + LEASE_MS - MARGIN_MS)
        for budget in list(self._slices.values()):
            if budget.valid_until_ms > asked_ms:
                await self._release_idle(budget)
            elif not budget.lock.locked():  # lost, or of a period that is over
                del self._slices[budget.key]

    async def _release_idle(self, budget: _Slice) -> None:
        """Gives back what nobody has used for a while; others may need it."""
        if budget.lock.locked():
            return
        async with budget.lock:
            is_idle = not budget.held and self._now_ms() - budget.used_ms > IDLE_MS
            if is_idle and self._is_journal_empty():
                # Gone from here first: whoever asks meanwhile waits for the lock and leases anew.
                self._slices[budget.key] = _Slice(budget.key, budget.limit, lock=budget.lock)
                await self._store.release_budget(budget.key, self._owner)


class _Hold:
    """One request's part of its slices."""

    __slots__ = ("_charge", "_is_over", "_slices")

    def __init__(self, slices: list[_Slice], charge: Charge, now_ms: int) -> None:
        """Takes hold at once."""
        self._slices = slices
        self._charge = charge
        self._is_over = False
        for budget in slices:
            budget.held += _amount(budget.key.kind, charge)
            budget.used_ms = now_ms

    def change(self, charge: Charge) -> None:
        """Holds `charge` instead of what was held until now."""
        if self._is_over:
            return
        for budget in self._slices:
            kind = budget.key.kind
            budget.held += _amount(kind, charge) - _amount(kind, self._charge)
        self._charge = charge

    def settle(self, charge: Charge) -> None:
        """Spends `charge` and gives the rest back. The first call counts."""
        if self._is_over:
            return
        self._is_over = True
        for budget in self._slices:
            kind = budget.key.kind
            budget.held -= _amount(kind, self._charge)
            budget.left -= _amount(kind, charge)


def _has_room(budget: _Slice, charge: Charge, now_ms: int) -> bool:
    """True when the slice suffices; a request that costs nothing needs a budget above zero."""
    return (
        budget.limit > 0
        and budget.valid_until_ms > now_ms
        and budget.left - budget.held >= _amount(budget.key.kind, charge)
    )


def _list_budgets(quotas: tuple[Quota, ...], request_id: RequestId) -> list[tuple[BudgetKey, int]]:
    """The budgets among `quotas`, and how much of each there is."""
    budgets: list[tuple[BudgetKey, int]] = []
    for quota in quotas:
        limits = quota.limits
        if limits.neurons_per_day is not None:
            period = read_period(BudgetKind.NEURONS, request_id)
            key = BudgetKey(quota.scope, BudgetKind.NEURONS, period)
            budgets.append((key, limits.neurons_per_day * MICRO))
        if limits.spend_nano_per_month is not None:
            period = read_period(BudgetKind.SPEND, request_id)
            key = BudgetKey(quota.scope, BudgetKind.SPEND, period)
            budgets.append((key, limits.spend_nano_per_month))
    return budgets


def _amount(kind: BudgetKind, charge: Charge) -> int:
    """What a charge takes from budgets of a kind."""
    return charge.num_microneurons if kind is BudgetKind.NEURONS else charge.cost_nano


def _refuse(budget: _Slice, request_id: RequestId, amount: int) -> ServiceError:
    """The error of a budget that has less than `amount` left until its period ends."""
    kind = budget.key.kind
    is_neurons = kind is BudgetKind.NEURONS
    limit = budget.limit // MICRO if is_neurons else budget.limit
    error: LimitError
    if limit > 0 and budget.left - budget.held > 0:
        bound = f"{-(-amount // MICRO)} neurons" if is_neurons else format_exact_money(amount)
        error = create_shortage(_DIMENSIONS[kind], budget.key.scope, limit, bound)
    else:
        error = create_refusal(_DIMENSIONS[kind], budget.key.scope, limit, None)
    error.retry_after_s = compute_wait_s(kind, request_id)
    return error
