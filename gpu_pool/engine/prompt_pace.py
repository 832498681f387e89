"""How much of prompts a step takes while answers are being generated, which wait for it.

Pure arithmetic on what the speed meter has measured. A step that reads the weights anyway computes
some tokens of prompts for little; beyond that they cost answers time, however quick the card is.
So the bound is a time, and the card says how many tokens it is worth. Read next: `planner`.
"""

from typing import Final

from gpu_pool.engine.speed_meter import SpeedMeter

_MS: Final = 1000
_LEAST_TOKENS: Final = 256
"""Fewer would cost more than they spare: matrices this small are computed no faster."""
_WHOLE_TOKENS: Final = 128
"""Bounds are multiples of this, so that shapes recur."""
_MOST_STEPS: Final = 3
"""A pause of so many steps that only generate is always allowed: where these are slow, shorter
pauses would leave prompts too little of the time."""


class PromptPace:
    """What answers under way can be asked to wait for."""

    def __init__(self, max_pause_ms: int, speed: SpeedMeter) -> None:
        """`speed` is read when asked. 0 ms bounds nothing."""
        self._max_pause_s = max_pause_ms / _MS
        self._speed = speed

    def bound(self, num_tokens: int) -> int:
        """Of `num_tokens` that a step has room for, those that prompts may take beside answers."""
        per_s = self._speed.prefill_per_s
        if not self._max_pause_s or not per_s:
            return num_tokens
        pause_s = max(self._max_pause_s, _MOST_STEPS * self._speed.decode_step_s)
        worth = int(pause_s * per_s) // _WHOLE_TOKENS * _WHOLE_TOKENS
        return min(num_tokens, max(worth, _LEAST_TOKENS))
