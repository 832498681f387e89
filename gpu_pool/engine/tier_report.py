"""What the server is told of the tiers: now and then, and only what is new.

Must not know tiers. Read next: `core` (the caller), `messages.KvTiers`.
"""

from collections.abc import Callable
from typing import Final

from gpu_pool.engine.messages import KvTiers
from gpu_pool.engine.transport import Transport

INTERVAL_S: Final = 1.0


class TierReport:
    """The latest report of one core."""

    def __init__(
        self, describe: Callable[[], KvTiers], transport: Transport, clock: Callable[[], float]
    ) -> None:
        """Nothing has been told. `clock` gives seconds."""
        self._describe = describe
        self._transport = transport
        self._clock = clock
        self._told = KvTiers()
        self._told_s = float("-inf")

    @property
    def patience_s(self) -> float | None:
        """When to come back although nothing happens; None while all has been told."""
        if self._describe() == self._told:
            return None
        return max(0.0, self._told_s + INTERVAL_S - self._clock())

    def send(self) -> None:
        """Tells what is new, unless there has just been a report."""
        if self._clock() - self._told_s < INTERVAL_S:
            return
        news = self._describe()
        if news != self._told:
            self._told, self._told_s = news, self._clock()
            self._transport.send(news)
