"""Whether a prefix is fetched from its tiers or computed again: whichever is sooner.

Owns the arithmetic alone; must not know tiers or clocks. Both sides are measured as they happen,
and what has not been measured counts as not worth it. A fetch that turns out slower than it was
thought to be is given up before it has cost more than a twentieth of the computing it was to save.
Read next: `rates` and `gpu_pool.engine.speed_meter` (the two rates), `tier_source` (the caller).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_SLACK: Final = 0.05
"""The part of the computing time that a fetch may waste; a tenth is promised, and the time that
computing takes is an estimate, too."""
_LEAST_SLACK_S: Final = 0.01
"""Less than this nobody notices; the engine looks about that often."""


@dataclass(frozen=True, slots=True)
class Patience:
    """When a fetch under way is given up. Units: seconds, tokens."""

    s_per_token: float
    """What computing takes."""
    num_tokens: int
    """All that are fetched."""

    @property
    def slack_s(self) -> float:
        """What may be wasted."""
        return max(_SLACK * self.num_tokens * self.s_per_token, _LEAST_SLACK_S)

    def bound_wait(self, num_landed: int) -> float:
        """Seconds after which nobody waits, not even for reads that hang, while so many tokens are
        there: by then what these have saved is used up, and a twentieth.
        """
        return self.slack_s + num_landed * self.s_per_token

    def is_over(self, elapsed_s: float, num_landed: int) -> bool:
        """True when waiting on would cost more than a twentieth of what was to be saved."""
        return elapsed_s > self.bound_wait(num_landed)


def count_worth(
    row_s: Sequence[float], num_row_tokens: int, backlog_s: float, tokens_per_s: float
) -> int:
    """How many leading places are to be fetched; 0 where computing all of them is sooner.

    `row_s` is what each takes, `backlog_s` how long those take that are being fetched already.
    """
    if tokens_per_s <= 0:
        return 0
    best, best_saved_s, saved_s = 0, 0.0, -backlog_s
    for count, seconds in enumerate(row_s, 1):
        saved_s += num_row_tokens / tokens_per_s - seconds
        if saved_s > best_saved_s:
            best, best_saved_s = count, saved_s
    return best


def is_safe(seconds: float, num_tokens: int, tokens_per_s: float) -> bool:
    """True where a fetch is so short that all of it may be lost: for what is of no use in part."""
    return tokens_per_s > 0 and seconds < _SLACK * num_tokens / tokens_per_s
