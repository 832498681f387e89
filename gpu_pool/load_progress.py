"""How far the load of a model is, as whoever reads weights tells it.

Readers are far below those who want to know, so that who listens is a matter of the context, as
with packing. Must not know files, torch or messages. Read next: `gpu_pool.weights.tensor_stream`
and `gpu_pool.weights.revision` (who tell), `gpu_pool.engine.load_report` and
`gpu_pool.worker.rank_process` (who listen).
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Protocol

TELL_EVERY_S: Final = 1.0


class Progress(Protocol):
    """Who is told about a load. Used by the thread that loads. Units: bytes."""

    def expect(self, num_bytes: int) -> None:
        """So many more are to be read."""
        ...

    def advance(self, num_bytes: int) -> None:
        """So many more are there; 0 where something else went on, such as a digest."""
        ...


class NobodyListens:
    """A load that nobody asks about."""

    def expect(self, num_bytes: int) -> None:
        """Nothing happens."""

    def advance(self, num_bytes: int) -> None:
        """Nothing happens."""


class LoadProgress:
    """Adds up one load and passes it on now and then, only when something has gone on."""

    def __init__(
        self,
        tell: Callable[[int, int], None],
        monotonic_s: Callable[[], float],
        every_s: float = TELL_EVERY_S,
    ) -> None:
        """`tell` gets the bytes that are there and those of the whole, as far as it is known."""
        self._tell = tell
        self._monotonic_s = monotonic_s
        self._every_s = every_s
        self._told_s = float("-inf")
        self._num_bytes = 0
        self._num_expected_bytes = 0

    def expect(self, num_bytes: int) -> None:
        """As `Progress` has it."""
        self._num_expected_bytes += num_bytes

    def advance(self, num_bytes: int) -> None:
        """As `Progress` has it."""
        self._num_bytes += num_bytes
        now_s = self._monotonic_s()
        if now_s - self._told_s >= self._every_s:
            self._told_s = now_s
            self._pass_on()

    def finish(self) -> None:
        """The load is over: the last is passed on, however little time ago something was."""
        if self._num_bytes:
            self._pass_on()

    def _pass_on(self) -> None:
        self._tell(self._num_bytes, max(self._num_bytes, self._num_expected_bytes))


_LISTENER: Final[ContextVar[Progress]] = ContextVar("progress", default=NobodyListens())  # noqa: B039


@contextmanager
def told_to(progress: Progress) -> Generator[None]:
    """Inside, `progress` is told about what this thread loads."""
    token = _LISTENER.set(progress)
    try:
        yield
    finally:
        _LISTENER.reset(token)


def find_progress() -> Progress:
    """Who is told here."""
    return _LISTENER.get()
