"""How fast this core computes prompts and generates tokens, for whoever spreads requests.

Pure: times are handed in. A step that is mostly prompts tells the speed of prefill; one that only
generates tells that of decode, of which the highest lately counts: a small batch is no slow node.
Read next: `core` (the caller), `contracts.fleet.ModelLoad`.
"""

from typing import Final

_WEIGHT: Final = 0.2
_FADE: Final = 0.999
_FEW_TOKENS: Final = 32
"""A step with fewer prompt tokens than this tells nothing of prefill."""


class SpeedMeter:
    """Running figures. Units: tokens per second; 0 until measured."""

    def __init__(self) -> None:
        """Nothing measured."""
        self.prefill_per_s = 0.0
        self.decode_per_s = 0.0

    def note_step(self, num_prefill: int, num_decode: int, seconds: float) -> None:
        """A step that computed so many tokens of prompts and for sequences that generate."""
        if seconds <= 0:
            return
        if num_prefill >= _FEW_TOKENS and num_prefill > num_decode:
            rate = num_prefill / seconds
            before = self.prefill_per_s or rate
            self.prefill_per_s = before + _WEIGHT * (rate - before)
        elif num_decode and not num_prefill:
            self.decode_per_s = max(num_decode / seconds, self.decode_per_s * _FADE)
