"""How fast requests leave a queue, and so when it makes sense to come back.

Pure: two windows of a few seconds, of which the older one fades as the newer one fills.
Read next: `gateway.fair_queue.model_queue`.
"""

from typing import Final

_WINDOW_S: Final = 10.0


class Pace:
    """Of one model's queue. Units: weighted tokens, seconds."""

    __slots__ = ("_before", "_now", "_since_s")

    def __init__(self, now_s: float) -> None:
        """Nothing has left."""
        self._since_s = now_s
        self._before = 0
        self._now = 0

    def note(self, num_tokens: int, now_s: float) -> None:
        """A request has gone to a node."""
        self._turn(now_s)
        self._now += num_tokens

    def estimate_s(self, num_tokens: int, now_s: float) -> float | None:
        """How long so many take at the pace of late; None: nothing has left in that time."""
        self._turn(now_s)
        elapsed_s = now_s - self._since_s
        num_left = self._before * (1 - elapsed_s / _WINDOW_S) + self._now
        return None if num_left <= 0 else num_tokens * _WINDOW_S / num_left

    def _turn(self, now_s: float) -> None:
        """Begins a new window where one is over."""
        elapsed_s = now_s - self._since_s
        if elapsed_s >= 2 * _WINDOW_S:
            self._before, self._now, self._since_s = 0, 0, now_s
        elif elapsed_s >= _WINDOW_S:
            self._before, self._now, self._since_s = self._now, 0, self._since_s + _WINDOW_S
