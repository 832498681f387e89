"""How often this gateway may try again: a share of its requests, so that trouble does not multiply.

When nodes fail by the dozen, retries without a bound double the load on those that are left. Each
request earns a part of a retry; a reserve lets all streams of one lost node go on at once.

Whoever asks for what fails everywhere could spend what others need: only answers that have begun
take the second half of the reserve, and nobody who has had many of late gets another one before
there are some left for those who have had none, nor does a model that fails everybody. Of what is
left an account takes up to half all the same where others have had most of what the model has had.
Debts fade as the reserve fills.
Pure. Read next: `gateway.fair_share`, `gateway.retries`, which asks.
"""

from collections.abc import Hashable
from typing import Final

from gateway.fair_share import is_fair

_EARNED: Final = 0.2
"""Retries that a request earns."""
_FORGOTTEN: Final = 0.25
"""What is left of a debt that is known no more."""
_LEAST_WORTH: Final = 1e-6


class RetryBudget:
    """What is left."""

    def __init__(self, reserve: int, per_s: float, now_s: float) -> None:
        """`reserve` retries at most are saved up; `per_s` come by themselves."""
        self._reserve = float(reserve)
        self._per_s = per_s
        self._left = float(reserve)
        self._then_s = now_s
        self._debts: dict[Hashable, float] = {}
        """What each has had, in units of `_worth`."""
        self._worth = 1.0
        """All debts fade alike: this, and not each of them."""

    def earn(self) -> None:
        """A request has come in."""
        self._gain(_EARNED)

    def spend(
        self, now_s: float, takers: tuple[Hashable, ...] = (), *, leaves_half: bool = False
    ) -> bool:
        """True when one more retry may be made; it is counted then, against all of `takers`: who
        asks, and behind that what for.

        Requests of whose answer nothing has gone out leave half of the reserve: they can be asked
        again, and clients can have as many of them fail as they like. An answer that has begun and
        whose node is lost has no other way to go on.
        """
        self._gain((now_s - self._then_s) * self._per_s)
        self._then_s = now_s
        free = self._left - (self._reserve / 2 if leaves_half else 0.0)
        if free < 1 or not self._is_fair(takers, free):
            return False
        self._left -= 1
        for taker in takers:
            self._debts[taker] = self._debts.get(taker, 0.0) + 1 / self._worth
        if len(self._debts) > 2 * len(takers) * self._reserve / _FORGOTTEN:
            self._forget()
        return True

    def _is_fair(self, takers: tuple[Hashable, ...], free: float) -> bool:
        """True when one more for them leaves enough of those that are `free` to others."""
        debts = [self._find_debt(taker) for taker in takers] or [0.0]
        if 2 * debts[0] < max(debts):
            free *= 2
        return all(is_fair(debt, free) for debt in debts)

    def _gain(self, num_retries: float) -> None:
        """There are so many more, which are taken off all debts."""
        spent = self._reserve - self._left
        if not spent:
            return  # nobody has had any
        left = min(self._left + num_retries, self._reserve)
        if left == self._reserve:
            self._debts.clear()
            self._worth = 1.0
        else:
            self._worth *= (self._reserve - left) / spent
            if self._worth < _LEAST_WORTH:
                self._forget()
        self._left = left

    def _find_debt(self, taker: Hashable) -> float:
        """What `taker` has had lately, less what has been gained since."""
        return self._debts.get(taker, 0.0) * self._worth

    def _forget(self) -> None:
        """Drops whoever has next to no debt left: all debts of a kind are no more than what is
        spent, so that of the others there are only so many.
        """
        debts = {taker: self._find_debt(taker) for taker in self._debts}
        self._debts = {taker: debt for taker, debt in debts.items() if debt > _FORGOTTEN}
        self._worth = 1.0
