"""A lull: nobody has computed for a moment, so that what a start has left for later may go on.

Memory that is taken ahead and a copy that is written beside the first answers held these up: a
priority keeps threads from cores, not from memory. Must not know what waits, nor what computes.
Read next: `gpu_pool.weights.pages_ahead`, `gpu_pool.weights.packed_writing` (who wait),
`gpu_pool.worker.plan_worker` (who computes).
"""

from collections.abc import Callable
from threading import Event
from typing import Final

_QUIET_S: Final = 1.0
"""Longer than whoever asks again needs between two answers."""
_PATIENCE_S: Final = 10.0
"""Since the model is there: a model that always computes has its memory and its copy, too."""


class Lull:
    """When steps are computed. One thread computes, any may wait. Units: seconds."""

    def __init__(
        self,
        monotonic_s: Callable[[], float],
        quiet_s: float = _QUIET_S,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        """Something has been computed just now: whoever has loaded a model waits for a request."""
        self._monotonic_s = monotonic_s
        self._quiet_s = quiet_s
        self._computed_s = monotonic_s()
        self._latest_s = self._computed_s + patience_s
        self._num_under_way = 0

    def begin(self) -> None:
        """A step is under way."""
        self._num_under_way += 1

    def end(self) -> None:
        """The oldest step is over."""
        self._num_under_way -= 1
        self._computed_s = self._monotonic_s()

    def wait(self, is_over: Event) -> None:
        """Returns in a lull, when patience has an end, or as soon as `is_over` is set."""
        while (left_s := self._measure_left_s()) > 0 and not is_over.wait(left_s):
            pass

    def _measure_left_s(self) -> float:
        """How long it takes at least."""
        now_s = self._monotonic_s()
        computed_s = now_s if self._num_under_way else self._computed_s
        return min(computed_s + self._quiet_s, self._latest_s) - now_s
