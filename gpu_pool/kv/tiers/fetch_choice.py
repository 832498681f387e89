"""Whether a prefix is fetched from its tiers or computed again: whichever is sooner.

Owns the arithmetic alone; must not know tiers or clocks. Both sides are measured as they happen,
and what has not been measured counts as not worth it. A fetch that turns out slower than it was
thought to be is given up before it has cost more than a twentieth of the computing it was to save.
Read next: `rates` and `gpu_pool.prefill_cost` (the two sides), `tier_source` (the caller).
"""

from bisect import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Self

from gpu_pool.prefill_cost import PrefillCost

_SLACK: Final = 0.05
"""The part of the computing time that a fetch may waste; a tenth is promised, and the time that
computing takes is an estimate, too."""
_SPARED: Final = 0.9
"""The part of its own computing that what has landed spares: it has to be taken in, and steps of
fewer tokens compute fewer a second."""
_LEAST_SAVING: Final = 0.05
"""The part of the computing time that a fetch must save, or it is not begun."""
_LEAST_SLACK_S: Final = 0.01
"""Less than this nobody notices; the engine looks about that often."""


@dataclass(frozen=True, slots=True)
class Patience:
    """When a fetch under way is given up. Units: seconds, tokens."""

    cost: PrefillCost
    """What computing takes."""
    first: int
    end: int
    """All that are fetched: the prompt's tokens from `first` to `end`."""

    @property
    def slack_s(self) -> float:
        """What may be wasted."""
        return max(_SLACK * self.cost.measure(self.first, self.end), _LEAST_SLACK_S)

    def bound_wait(self, num_landed: int) -> float:
        """Seconds after which nobody waits, not even for reads that hang, while so many tokens are
        there: by then what these have saved is used up, and a twentieth.
        """
        spared_s = self.cost.measure(self.first, self.first + num_landed)
        return self.slack_s + _SPARED * spared_s

    def is_over(self, elapsed_s: float, num_landed: int) -> bool:
        """True when waiting on would cost more than a twentieth of what was to be saved."""
        return elapsed_s > self.bound_wait(num_landed)


class Backlog:
    """What is being fetched already, as one account sees it. Units: as its maker has them."""

    def __init__(self, own: float = 0.0, others: Iterable[float] = ()) -> None:
        """`own` is the account's, which comes first; `others` is what each other one has."""
        self._own = own
        self._others = sorted(others)
        self._sums = [0.0, *accumulate(self._others)]

    def in_seconds(self, s_per_byte: float) -> Self:
        """The same of bytes as the time that they take."""
        own = self._own * s_per_byte if self._own else 0.0
        return type(self)(own, (other * s_per_byte for other in self._others))

    def count_ahead(self, more: float) -> float:
        """What is read before so much more of this account has been: taking turns with it each
        other one gets as much as it does, or all that it wants.
        """
        own = self._own + more
        num_less = bisect(self._others, own)
        num_more = len(self._others) - num_less
        return self._own + self._sums[num_less] + (own * num_more if num_more else 0.0)


def count_worth(
    row_s: Sequence[float],
    num_row_tokens: int,
    backlog: Backlog,
    cost: PrefillCost,
    first: int = 0,
) -> int:
    """How many leading places are to be fetched; 0 where that would not save a twentieth of
    computing them: a fetch may cost as much, and both rates are guesses.

    `row_s` is what each takes, `backlog` in seconds; the prompt's first `first` tokens are there.
    """
    if not cost.is_known:
        return 0
    best, best_saved_s, fetching_s = 0, 0.0, 0.0
    for count, seconds in enumerate(row_s, 1):
        fetching_s += seconds
        computing_s = cost.measure(first, first + count * num_row_tokens)
        saved_s = computing_s - fetching_s - backlog.count_ahead(fetching_s)
        if saved_s > best_saved_s:
            best, best_saved_s = count, saved_s
    least_s = _LEAST_SAVING * cost.measure(first, first + best * num_row_tokens)
    is_worth = best_saved_s > least_s
    return best if is_worth else 0


def is_safe(seconds: float, computing_s: float) -> bool:
    """True where a fetch is so short that all of it may be lost: for what is of no use in part;
    computing it takes `computing_s`, 0: who knows.
    """
    return seconds < _SLACK * computing_s
