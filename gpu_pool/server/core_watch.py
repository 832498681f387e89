"""Notices a core process that owes a word and gets no further: frozen, hung, or waiting for ever.

Only silence counts that this process was there to hear: while its own event loop was held up, or
the whole machine stood still, nothing can be said about the core. Must not know what becomes of a
silent core. Read next: `core_supervisor` (the caller), `engine_client` (what was heard), `silence`.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from gpu_pool.server.engine_client import EngineClient
from gpu_pool.silence import Silence

_PING_AFTER_S: Final = 4.0
_LOOKS_PER_PING: Final = 4


class CoreWatch:
    """One life of one core process. Nothing is sent to a core that speaks or has nothing to do."""

    def __init__(
        self, client: EngineClient, max_silence_s: float, monotonic_s: Callable[[], float]
    ) -> None:
        """A core that is busy answers a ping after its step, one that waits at once."""
        self._client = client
        self._max_silence_s = max_silence_s
        self._ping_after_s = min(_PING_AFTER_S, max_silence_s / 4)
        self._look_s = self._ping_after_s / _LOOKS_PER_PING
        self._monotonic_s = monotonic_s

    async def wait_silent(self, is_expected: Callable[[], bool]) -> float:
        """How long the core has been silent, as soon as that is too long.

        It owes a word while requests are with it, while a ping is not answered, and while
        something `is_expected` of it.
        """
        silence = Silence(self._look_s)
        is_pinged = False
        looked_s = self._monotonic_s()
        while silence.length_s < self._max_silence_s:
            await asyncio.sleep(self._look_s)
            self._client.look()
            before_s, looked_s = looked_s, self._monotonic_s()
            is_owed = is_expected() or self._client.owes_word
            silence.look(looked_s - before_s, self._client.num_heard, is_owed=is_owed)
            if silence.length_s < self._ping_after_s:
                is_pinged = False
            elif not is_pinged:
                is_pinged = self._client.ping()
        return silence.length_s
