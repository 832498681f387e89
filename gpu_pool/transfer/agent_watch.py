"""Notices a transfer agent that gets no further: frozen, or stuck in a call of its engine.

An agent owes a word at any time: that it is ready, and then the answer to a ping, which comes
between two of its calls. Others read from its memory and tell it nothing, so idleness is no excuse.
Must not know what becomes of a silent agent. Read next: `agent_client` (the caller), `silence`.
"""

from collections.abc import Callable
from typing import Final

from gpu_pool.silence import PingedSilence

LOOK_S: Final = 1.0
MAX_SILENCE_S: Final = 5.0
"""Far longer than any one call of an engine, which are milliseconds: reads are not awaited in
calls."""
_START_S: Final = 60.0
_REGISTERED_BYTES_PER_S: Final = 256 << 20
"""Until it is ready: imports, and memory that is registered, by a slow machine."""


class AgentWatch:
    """One agent after the other. Used by one thread."""

    def __init__(self, num_bytes: int, ping: Callable[[], object]) -> None:
        """`num_bytes` are what an agent registers before it is ready."""
        self._start_s = _START_S + num_bytes / _REGISTERED_BYTES_PER_S
        self._silence = PingedSilence(LOOK_S, ping)

    def bound(self, wait_s: float | None) -> float:
        """As long as `wait_s`, but no longer than until the next look."""
        return self._silence.bound(wait_s)

    def is_silent(self, num_signs: int, *, is_ready: bool) -> bool:
        """True when the agent has said nothing for too long; called again and again.

        `num_signs` are all starts of agents and all words of theirs so far, with none left unread.
        """
        return self._silence.look(num_signs) >= (MAX_SILENCE_S if is_ready else self._start_s)
