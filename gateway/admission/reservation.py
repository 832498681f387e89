"""What one request holds of its limits, from admission to settlement.

Owns the order reserve → confirm → settle and that each is done once. Must not know how limits are
counted. Read next: `gateway.admission.admission`.
"""

from typing import Protocol

from contracts.pricing import FREE, Charge, Price, TokenCounts, compute_charge
from gateway.admission.limiter import Limiter, RateNeed
from gateway.admission.quota_arithmetic import TokenBound, correct_bound, limit_tokens


class BudgetHold(Protocol):
    """What a request holds of its budgets."""

    def change(self, charge: Charge) -> None:
        """Holds `charge` instead of what was held until now."""
        ...

    def settle(self, charge: Charge) -> None:
        """Spends `charge` and gives the rest back."""
        ...


class NoHold:
    """Holds nothing."""

    def change(self, charge: Charge) -> None:
        """Nothing is held."""

    def settle(self, charge: Charge) -> None:
        """Nothing was held."""


NO_HOLD = NoHold()


class Reservation:
    """One request's. Without limits it only knows the price."""

    __slots__ = ("_hold", "_is_over", "_limiter", "_most", "need", "price")

    def __init__(
        self,
        price: Price | None,
        limiter: Limiter,
        need: RateNeed | None,
        hold: BudgetHold,
        most: TokenBound,
    ) -> None:
        """`price` None: the account pays nothing. `need` None: nothing is limited. `most` is what
        the request can come to.
        """
        self.price = price
        self._limiter = limiter
        self.need = need
        self._hold = hold
        self._most = most
        self._is_over = False

    def limit(self, tokens: TokenCounts) -> TokenCounts:
        """`tokens` as far as the request can have come to them."""
        return limit_tokens(tokens, self._most)

    def charge(self, tokens: TokenCounts) -> Charge:
        """What `tokens` cost."""
        return FREE if self.price is None else compute_charge(self.price, tokens)

    def confirm(self, num_prompt: int, num_cached: int) -> None:
        """Corrects the bound, now that the node has counted the prompt.

        A prompt beyond the bound is not refused any more, but counted in full, as far as a context
        goes.
        """
        if self._is_over or self.need is None:
            return
        bound = limit_tokens(correct_bound(self._most, num_prompt, num_cached), self._most)
        self._correct(bound.num_uncached + bound.num_cached + bound.num_output)
        self._hold.change(self.charge(bound))

    def settle(self, tokens: TokenCounts, charge: Charge) -> None:
        """Counts what was used, gives back the rest and ends the leases. The first call counts."""
        if self._is_over:
            return
        self._is_over = True
        if self.need is None:
            return
        num_prompt = tokens.num_uncached + tokens.num_cached
        self._correct(num_prompt + tokens.num_output + tokens.num_reasoning)
        self._limiter.release(self.need)
        self._hold.settle(charge)

    def _correct(self, num_tokens: int) -> None:
        need = self.need
        assert need is not None
        if num_tokens != need.num_tokens:
            self._limiter.correct(need, num_tokens - need.num_tokens)
            self.need = RateNeed(need.reservation_id, need.quotas, num_tokens)
