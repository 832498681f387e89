"""How much of prompts a step takes while answers are being generated, which wait for it.

Pure: times are handed in. A step that reads the weights anyway computes some tokens of prompts for
little; beyond that they cost answers time, however quick the card is. So the bound is a time, and
steps show how many tokens that is: full ones that were shorter let the next be larger, longer ones
make it smaller. What the answers take of a step does not count for prompts: with few tokens it is
most of it. Read next: `planner`, `speed_meter`.
"""

from typing import Final

from gpu_pool.engine.speed_meter import SpeedMeter

_MS: Final = 1000
_LEAST_TOKENS: Final = 32
"""A core begins with so few. Fewer would be computed no faster: a step has costs of its own."""
_BOUNDS_OF_A_DOUBLING: Final = 4
"""Bounds that there are from one to its double, so that shapes recur."""
_MOST_STEPS: Final = 3
"""A pause of so many steps that only generate is always allowed: where these are slow, shorter
pauses would leave prompts too little of the time, and read all weights for a few tokens."""
_LEAST_PART: Final = 0.05
"""Of a step, what prompts are taken to cost where it was hardly longer than one without."""
_AIM: Final = 0.9
"""Of what seems to fit: steps are not of one length."""
_GROWTH: Final = 1.25
_SHRINKAGE: Final = 0.5
"""At most, and by step: one that was held up by something else says little."""


class PromptPace:
    """What answers under way can be asked to wait for."""

    def __init__(self, max_pause_ms: int, max_tokens: int, speed: SpeedMeter) -> None:
        """Steps have at most `max_tokens`. 0 ms bounds nothing. `speed` is read when asked."""
        self._max_pause_s = max_pause_ms / _MS
        self._most = float(max(max_tokens, _LEAST_TOKENS))
        self._speed = speed
        self._num_tokens = float(_LEAST_TOKENS)

    def bound(self, room: int) -> int:
        """Of the tokens that a step has room for, those that prompts may take beside answers."""
        return min(room, self._whole_tokens) if self._max_pause_s else room

    def note_step(self, num_prefill: int, num_decode: int, seconds: float) -> None:
        """A step that computed so many tokens of prompts, and for sequences that generate."""
        if not num_decode or seconds <= 0:
            return
        answers_s = self._speed.find_decode_step_s(num_decode)
        allowed_s = max(self._max_pause_s, _MOST_STEPS * answers_s)
        prompts_s = max(seconds - answers_s, _LEAST_PART * seconds)
        fitting = num_prefill * (allowed_s - answers_s) / prompts_s
        if seconds > allowed_s and num_prefill >= _LEAST_TOKENS:
            fewer = max(min(self._num_tokens, fitting), self._num_tokens * _SHRINKAGE)
            self._num_tokens = max(fewer, _LEAST_TOKENS)
        elif num_prefill >= self._whole_tokens:
            more = min(_AIM * fitting, self._num_tokens * _GROWTH, self._most)
            self._num_tokens = max(more, self._num_tokens)

    @property
    def _whole_tokens(self) -> int:
        """The bound as steps have it."""
        if self._num_tokens >= self._most:
            return int(self._most)
        num_tokens = int(self._num_tokens)
        doubling = 1 << num_tokens.bit_length() - 1
        unit = max(_LEAST_TOKENS, doubling // _BOUNDS_OF_A_DOUBLING)
        return num_tokens // unit * unit
