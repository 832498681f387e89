"""How long KV blocks take from one node to another, as seen so far.

Pure. A line through what was measured, `seconds = fixed + tokens * slope`, where older measurements
count less and less; before the first one it is a guess that few measurements outweigh. Where it is
above that guess it comes down to it while nothing is measured: what seems too long is not tried,
and a way that has been bad for a while would never be found to be good again.
Read next: `gateway.routing.prefill_choice`.
"""

import operator
from typing import Final, NamedTuple

_MEMORY: Final = 0.98
"""What a measurement still counts after the next one."""
_GUESSES: Final = ((64, 0.01), (4096, 0.4))
"""Tokens and seconds of a slow network: a first hand-over has to be worth that much."""
_FADE_S: Final = 60.0
"""In which half of what was measured is forgotten, where the line is above the guess and nothing
new is measured: a way that stays bad costs one prompt in some minutes its patience."""


class HandOverMeter:
    """The time that hand-overs take. Units: tokens, seconds."""

    __slots__ = ("_noted_s", "_sums")

    def __init__(self) -> None:
        """Knows the guesses only."""
        self._sums = _GUESSED
        self._noted_s = 0.0

    def note(self, num_tokens: int, seconds: float, now_s: float) -> None:
        """Blocks of `num_tokens` have taken `seconds` from when they could be fetched."""
        if self._sums.read(num_tokens) > _GUESSED.read(num_tokens):
            self._sums = self._fade(now_s)
        self._noted_s = now_s
        self._sums = self._sums.weigh(_MEMORY).add(_sum_up(num_tokens, seconds))

    def estimate_s(self, num_tokens: int, now_s: float) -> float:
        """What `num_tokens` will take; never below nothing, and never less for more of them."""
        line_s, guess_s = self._sums.read(num_tokens), _GUESSED.read(num_tokens)
        if line_s <= guess_s:
            return line_s
        return max(self._fade(now_s).read(num_tokens), guess_s)

    def _fade(self, now_s: float) -> "_Sums":
        """What is left by now of what was measured, and the guesses in place of the rest."""
        share = 0.5 ** (max(now_s - self._noted_s, 0.0) / _FADE_S)
        return self._sums.weigh(share).add(_GUESSED.weigh(1 - share))


class _Sums(NamedTuple):
    """Of measurements, each as far as it still counts."""

    weight: float
    tokens: float
    seconds: float
    tokens_squared: float
    tokens_seconds: float

    def weigh(self, share: float) -> "_Sums":
        """All of them as if each counted for so much."""
        return _Sums(*(share * part for part in self))

    def add(self, other: "_Sums") -> "_Sums":
        """Both together."""
        return _Sums(*map(operator.add, self, other))

    def read(self, num_tokens: int) -> float:
        """Where the line through them is at `num_tokens`, in seconds."""
        mean_tokens, mean_s = self.tokens / self.weight, self.seconds / self.weight
        spread = self.tokens_squared / self.weight - mean_tokens**2
        shared = self.tokens_seconds / self.weight - mean_tokens * mean_s
        slope = max(shared / spread, 0.0) if spread > 0 else 0.0
        return max(mean_s + slope * (num_tokens - mean_tokens), 0.0)


def _sum_up(num_tokens: int, seconds: float) -> _Sums:
    """One measurement."""
    return _Sums(1, num_tokens, seconds, num_tokens * num_tokens, num_tokens * seconds)


_GUESSED: Final = _sum_up(*_GUESSES[0]).add(_sum_up(*_GUESSES[1]))
