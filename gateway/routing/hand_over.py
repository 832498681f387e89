"""How long KV blocks take from one node to another, as seen so far.

Pure. A line through what was measured, `seconds = fixed + tokens * slope`, where older measurements
count less and less; before the first one it is a guess that few measurements outweigh.
Read next: `gateway.routing.prefill_choice`.
"""

from typing import Final

_MEMORY: Final = 0.98
"""What a measurement still counts after the next one."""
_GUESSES: Final = ((64, 0.01), (4096, 0.4))
"""Tokens and seconds of a slow network: a first hand-over has to be worth that much."""


class HandOverMeter:
    """The time that hand-overs take. Units: tokens, seconds."""

    __slots__ = ("_count", "_seconds", "_tokens", "_tokens_seconds", "_tokens_squared")

    def __init__(self) -> None:
        """Knows the guesses only."""
        self._count = self._tokens = self._seconds = 0.0
        self._tokens_squared = self._tokens_seconds = 0.0
        for num_tokens, seconds in _GUESSES:
            self._add(num_tokens, seconds)

    def note(self, num_tokens: int, seconds: float) -> None:
        """Blocks of `num_tokens` have taken `seconds` from when they could be fetched."""
        self._count *= _MEMORY
        self._tokens *= _MEMORY
        self._seconds *= _MEMORY
        self._tokens_squared *= _MEMORY
        self._tokens_seconds *= _MEMORY
        self._add(num_tokens, seconds)

    def estimate_s(self, num_tokens: int) -> float:
        """What `num_tokens` will take; never below nothing, and never less for more of them."""
        mean_tokens, mean_s = self._tokens / self._count, self._seconds / self._count
        spread = self._tokens_squared / self._count - mean_tokens**2
        shared = self._tokens_seconds / self._count - mean_tokens * mean_s
        slope = max(shared / spread, 0.0) if spread > 0 else 0.0
        return max(mean_s + slope * (num_tokens - mean_tokens), 0.0)

    def _add(self, num_tokens: int, seconds: float) -> None:
        self._count += 1
        self._tokens += num_tokens
        self._seconds += seconds
        self._tokens_squared += num_tokens * num_tokens
        self._tokens_seconds += num_tokens * seconds
