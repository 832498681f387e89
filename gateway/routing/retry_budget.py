"""How often this gateway may try again: a share of its requests, so that trouble does not multiply.

When nodes fail by the dozen, retries without a bound double the load on those that are left. Each
request earns a part of a retry; a reserve lets all streams of one lost node go on at once.
Pure. Read next: `gateway.forwarding`, which asks.
"""

from typing import Final

_EARNED: Final = 0.2
"""Retries that a request earns."""


class RetryBudget:
    """What is left."""

    def __init__(self, reserve: int, per_s: float, now_s: float) -> None:
        """`reserve` retries at most are saved up; `per_s` come by themselves."""
        self._reserve = float(reserve)
        self._per_s = per_s
        self._left = float(reserve)
        self._then_s = now_s

    def earn(self) -> None:
        """A request has come in."""
        self._left = min(self._left + _EARNED, self._reserve)

    def spend(self, now_s: float, *, is_refused: bool = False) -> bool:
        """True when one more retry may be made; it is counted then.

        Requests that nodes have only refused leave half of the reserve: clients can have as many
        refused as they like, and an answer whose node is lost has no other way to go on.
        """
        self._left = min(self._left + (now_s - self._then_s) * self._per_s, self._reserve)
        self._then_s = now_s
        kept = self._reserve / 2 if is_refused else 0.0
        if self._left < kept + 1:
            return False
        self._left -= 1
        return True
