"""A drive that refuses, and when it is asked again.

Owns the times alone; must not know drives. After a refusal nothing is asked for a while, which
becomes longer as long as the drive goes on refusing: a full one costs a write now and then and a
line in the log with each. Any thread may call. Read next: `file_tier`, the user.
"""

import threading
from collections.abc import Callable
from typing import Final

_FIRST_PAUSE_S: Final = 10.0
_GROWTH: Final = 3.0
_LAST_PAUSE_S: Final = 600.0


class Refusals:
    """Those of one drive."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        """None yet."""
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._pause_s = 0.0
        self._until_s = float("-inf")
        self.is_refusing = False
        """From a refusal until something is done again."""

    @property
    def may_ask(self) -> bool:
        """False in a pause."""
        return not self.is_refusing or self._monotonic_s() >= self._until_s

    def note_refused(self) -> float:
        """Begins a pause, if there is none; for how long, 0: there was one."""
        with self._lock:
            now_s = self._monotonic_s()
            if self.is_refusing and now_s < self._until_s:
                return 0.0
            has_recovered = not self.is_refusing and now_s - self._until_s > _LAST_PAUSE_S
            grown_s = min(self._pause_s * _GROWTH, _LAST_PAUSE_S)
            self._pause_s = _FIRST_PAUSE_S if has_recovered or not grown_s else grown_s
            self._until_s = now_s + self._pause_s
            self.is_refusing = True
            return self._pause_s

    def note_done(self) -> bool:
        """True for the first thing that is done after a pause."""
        if not self.is_refusing:
            return False
        with self._lock:
            was_refusing = self.is_refusing and self._monotonic_s() >= self._until_s
            self.is_refusing = self.is_refusing and not was_refusing
            return was_refusing
