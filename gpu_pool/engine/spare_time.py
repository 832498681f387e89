"""What a core does once for later, when nobody has asked it for anything for a moment.

A start leaves it undone: who waits for the first answer does not wait for it. Must not know what it
is. Read next: `core` (the caller), `matcher_maker` (what is done).
"""

from collections.abc import Callable
from typing import Final

_QUIET_S: Final = 1.0
"""Longer than whoever asks again needs between two answers."""


class SpareTime:
    """One thing to do in the first quiet moment. Units: seconds."""

    def __init__(self, do: Callable[[], None] | None, clock: Callable[[], float]) -> None:
        """The moment begins now, and anew with all that happens. None: there is nothing to do."""
        self._do = do
        self._clock = clock
        self._quiet_since_s = clock()

    def bound(self, patience_s: float | None) -> float | None:
        """How long to wait for a message instead; `patience_s` itself once it is done."""
        if self._do is None:
            return patience_s
        left_s = max(0.0, self._quiet_since_s + _QUIET_S - self._clock())
        return left_s if patience_s is None else min(patience_s, left_s)

    def note(self, *, is_quiet: bool) -> None:
        """Whether there was nothing to do and nothing came; does it when that has lasted."""
        if self._do is None:
            return
        if not is_quiet:
            self._quiet_since_s = self._clock()
        elif self._clock() >= self._quiet_since_s + _QUIET_S:
            do, self._do = self._do, None
            do()
