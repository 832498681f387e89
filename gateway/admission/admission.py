"""Whether a request may start now: its price must be known and every limit must have room.

Owns the order of the questions; a refused request has taken nothing. Must not know HTTP.
Read next: `gateway.admission.limiter`, `gateway.admission.reservation`.
"""

from typing import Final, Protocol

from contracts.errors import PriceUnknown
from contracts.ids import RequestId
from contracts.inference import NodeRequest
from contracts.pricing import FREE, Charge, Price, TokenCounts, bound_charge
from contracts.quotas import Quota
from gateway.admission.limiter import Limiter, RateNeed, RateState
from gateway.admission.price_book import PriceBook
from gateway.admission.quota_arithmetic import bound_request
from gateway.admission.reservation import NO_HOLD, BudgetHold, Reservation
from tenancy.interfaces import Principal

NOTHING: Final = TokenCounts(0, 0, 0)


class Budgets(Protocol):
    """Keeps the budgets of days and months."""

    async def hold(
        self, quotas: tuple[Quota, ...], charge: Charge, request_id: RequestId
    ) -> BudgetHold:
        """Holds `charge` in every budget, all or none.

        Raises: `QuotaExceeded`, `StoreUnavailable`.
        """
        ...


class NoBudgets:
    """Knows no budget."""

    async def hold(
        self, quotas: tuple[Quota, ...], charge: Charge, request_id: RequestId
    ) -> BudgetHold:
        """Holds nothing."""
        return NO_HOLD


class Admission:
    """Admits requests."""

    def __init__(self, prices: PriceBook, limiter: Limiter, budgets: Budgets) -> None:
        """`limiter` has rates and leases, `budgets` what days and months may cost."""
        self._prices = prices
        self._limiter = limiter
        self._budgets = budgets

    async def admit(
        self,
        principal: Principal,
        request_id: RequestId,
        period_id: RequestId,
        request: NodeRequest,
        num_body_bytes: int,
        context_window: int,
    ) -> tuple[Reservation, RateState | None]:
        """What the request holds from now on, and where its limit on requests stands. Budgets are
        those of the day and month of `period_id`.

        Raises: `PriceUnknown`, `LimitError` leaves, `StoreUnavailable`.
        """
        price = self._find_price(principal, request)
        most = bound_request(request, num_body_bytes, context_window)
        if not principal.quotas:
            return Reservation(price, self._limiter, None, NO_HOLD, most), None
        quotas = tuple([q for q in principal.quotas if q.scope.model in (None, request.model)])
        num_prompt, num_output = most.num_prompt, most.max_output
        charge = FREE if price is None else bound_charge(price, num_prompt, num_output)
        need = RateNeed(request_id, quotas, num_prompt + num_output)
        hold = await self._budgets.hold(quotas, charge, period_id)
        try:
            state = await self._limiter.reserve(need)
        except BaseException:
            hold.settle(FREE)
            raise
        return Reservation(price, self._limiter, need, hold, most), state

    def _find_price(self, principal: Principal, request: NodeRequest) -> Price | None:
        """The price, None for an account that pays nothing. Raises: `PriceUnknown`."""
        if not principal.is_metered:
            return None
        price = self._prices.find(request.model)
        if price is None:
            raise PriceUnknown(f"The model {request.model} has no price here yet.")
        return price
