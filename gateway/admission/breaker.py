"""A breaker: after several failures in a row nobody tries any more, but for one probe at a time.

Owns the count and the pause. Must not know what fails.
"""

import asyncio
from collections.abc import Callable


class Breaker:
    """Closed while calls succeed; open after `max_failures` in a row until a probe succeeds."""

    def __init__(self, now_s: Callable[[], float], max_failures: int, pause_s: float) -> None:
        """`pause_s` lies between two probes."""
        self._now_s = now_s
        self._max_failures = max_failures
        self._pause_s = pause_s
        self._num_failures = 0
        self._opened = asyncio.Event()
        self._probe_at_s = 0.0

    def is_closed(self) -> bool:
        """True while calls may be made."""
        return self._num_failures < self._max_failures

    def record_failure(self) -> None:
        """A call or probe has failed."""
        self._num_failures += 1
        if not self.is_closed():
            self._probe_at_s = self._now_s() + self._pause_s
            self._opened.set()

    def record_success(self) -> None:
        """A call or probe has succeeded."""
        self._num_failures = 0
        self._opened.clear()

    async def wait_for_probe(self) -> None:
        """Returns when it is open and the pause is over."""
        while True:
            await self._opened.wait()
            pause_s = self._probe_at_s - self._now_s()
            if pause_s <= 0:
                return
            await asyncio.sleep(pause_s)
