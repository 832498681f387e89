"""For how long a process that owes a word has said none, as far as this one was there to hear.

Must not know who is silent, nor what becomes of it. Read next: `server.core_watch` (cores),
`transfer.agent_watch` and `kv.tiers.mooncake_life` (agents), ADR 0045.
"""

import time
from collections.abc import Callable
from typing import Final

_LATE_FACTOR: Final = 2
"""A look that comes later than so many times its turn tells nothing."""


class Silence:
    """How long somebody has owed a word, from one look at it to the next."""

    def __init__(self, look_s: float) -> None:
        """It has just been heard; looks are `look_s` apart."""
        self._look_s = look_s
        self._num_heard = 0
        self.length_s = 0.0

    def look(self, elapsed_s: float, num_heard: int, *, is_owed: bool) -> None:
        """Takes note of how many words have come in all, `elapsed_s` after the look before."""
        if num_heard != self._num_heard or not is_owed:
            self._num_heard = num_heard
            self.length_s = 0.0
        elif elapsed_s <= _LATE_FACTOR * self._look_s:
            self.length_s += elapsed_s


class PingedSilence:
    """The same of somebody who owes a word from the first look on, since that brings a ping, and
    every answer another one.

    Used by one thread, which looks about as often as `bound` says.
    """

    def __init__(
        self,
        look_s: float,
        ping: Callable[[], object],
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nobody has been pinged."""
        self._look_s = look_s
        self._ping = ping
        self._monotonic_s = monotonic_s
        self._silence = Silence(look_s)
        self._looked_s = monotonic_s()
        self._has_pinged = False

    def bound(self, wait_s: float | None) -> float:
        """As long as `wait_s` (None: for ever), but no longer than until the next look."""
        until_look_s = max(0.0, self._looked_s + self._look_s - self._monotonic_s())
        return until_look_s if wait_s is None else min(wait_s, until_look_s)

    def look(self, num_heard: int) -> float:
        """For how long there was silence at the last look, which is now if one is due.

        `num_heard` are all words so far, with none left unread. Units: seconds.
        """
        now_s = self._monotonic_s()
        elapsed_s = now_s - self._looked_s
        if elapsed_s >= self._look_s:
            self._looked_s = now_s
            self._silence.look(elapsed_s, num_heard, is_owed=self._has_pinged)
            if not self._silence.length_s:
                self._has_pinged = True
                self._ping()
        return self._silence.length_s
