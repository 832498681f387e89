"""What computing a part of a prompt takes: its tokens, and what each of them looks back at.

Pure: times are handed in. Of a long prompt the first half is computed much sooner than the second,
so that tokens in a second alone would say too much of a prefix's first part. How the two weigh
against one another is a property of model and machine, learnt slowly over steps that differ in it;
as long as none do, tokens count alone. How quick the machine is now is told by the latest steps.
Read next: `gpu_pool.engine.speed_meter` (the user), `gpu_pool.kv.tiers.fetch_choice`.
"""

from dataclasses import dataclass
from typing import Final

_MEMORY: Final = 0.98
"""What a step counts for when the next one is over."""
_SHRINKAGE: Final = 0.01
"""So far looking back is believed to cost nothing, which settles it where all steps are alike."""
_MOST_TIMES: Final = 1.5
"""A step that took more than so many times what is known was held up by something else."""
_MOST_WEIGHT: Final = 1.0
"""Of one token that is looked at, beside one that is computed."""


@dataclass(frozen=True, slots=True)
class PrefillCost:
    """What is known now. Units: seconds; all 0 until measured."""

    s_per_token: float = 0.0
    s_per_pair: float = 0.0
    """For each token and each one before it that it looks at."""

    @property
    def is_known(self) -> bool:
        """False until measured."""
        return self.s_per_token > 0 or self.s_per_pair > 0

    def measure(self, first: int, end: int) -> float:
        """Seconds to compute the tokens from `first` to `end`, those before them being there."""
        pairs = count_pairs(first, end)
        return (end - first) * self.s_per_token + pairs * self.s_per_pair


class PairWeight:
    """What looking at one more token costs beside computing one: a running figure."""

    def __init__(self) -> None:
        """Nothing measured: looking back costs nothing."""
        self.value = 0.0
        self._tokens_2 = self._mixed = self._pairs_2 = 0.0
        self._token_s = self._pair_s = 0.0
        """Sums of products over steps, of which the old ones fade: tokens by tokens, tokens by
        pairs, pairs by pairs, and either by seconds."""

    def note_step(self, num_tokens: int, num_pairs: float, seconds: float, known_s: float) -> None:
        """A step that took so long where `known_s` were to be expected, 0: who knows."""
        seconds = min(seconds, _MOST_TIMES * known_s) if known_s else seconds
        self._tokens_2 = self._tokens_2 * _MEMORY + num_tokens * num_tokens
        self._mixed = self._mixed * _MEMORY + num_tokens * num_pairs
        self._pairs_2 = self._pairs_2 * _MEMORY + num_pairs * num_pairs
        self._token_s = self._token_s * _MEMORY + num_tokens * seconds
        self._pair_s = self._pair_s * _MEMORY + num_pairs * seconds
        self.value = self._fit()

    def _fit(self) -> float:
        """Least squares, drawn towards nothing where steps hardly differ."""
        spread = self._tokens_2 * self._pairs_2 * (1 + _SHRINKAGE) - self._mixed**2
        if spread <= 0:
            return 0.0
        s_per_pair = (self._pair_s * self._tokens_2 - self._token_s * self._mixed) / spread
        s_per_pair = max(0.0, s_per_pair)
        s_per_token = (self._token_s - s_per_pair * self._mixed) / self._tokens_2
        return s_per_pair / max(s_per_token, s_per_pair / _MOST_WEIGHT) if s_per_pair else 0.0


def count_pairs(first: int, end: int) -> float:
    """At how many tokens those from `first` to `end` look, all together."""
    return (end - first) * (first + end) / 2
