"""Weights on their way back to the device, portion by portion in the order of their first use.

Owns who waits for what; must not know layers, only that portion 0 is needed first.
Read next: `device_memory`, `cpu_memory` and `arena` (who lands), `gpu_pool.worker.model_landing`.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol


class Landing(Protocol):
    """One return of a model's weights, under way from its creation on."""

    @property
    def num_bytes(self) -> int:
        """What the device gives in all."""
        ...

    def wait_for(self, portion: int) -> None:
        """What is computed from now on finds this portion and all before it in place.

        Where a device waits by itself this returns at once. Raises: `OSError` when a portion did
        not come, and again whenever it is asked for.
        """
        ...

    def finish(self) -> None:
        """The same for all portions; what the host kept of them is given back where it is not to
        be kept. Raises: `OSError`.
        """
        ...

    def abandon(self) -> None:
        """Ends it, wherever it is; returns when nothing is written any more. May follow `finish`"""
        ...


class Landed:
    """Nothing is under way: all is where it should be."""

    def __init__(self, num_bytes: int) -> None:
        """`num_bytes` were given by the device."""
        self._num_bytes = num_bytes

    @property
    def num_bytes(self) -> int:
        """What the device gave."""
        return self._num_bytes

    def wait_for(self, portion: int) -> None:
        """It is there."""

    def finish(self) -> None:
        """All is there."""

    def abandon(self) -> None:
        """There is nothing to end."""


class ThreadedLanding:
    """Pieces that threads of this process bring, those of earlier portions first."""

    def __init__(
        self,
        portions: Sequence[Sequence[Callable[[], int]]],
        num_threads: int,
        on_finished: Callable[[], None],
    ) -> None:
        """Each piece is a call that brings it and returns its bytes; all are begun in order.

        `on_finished` is called once all are there.
        """
        self._threads = ThreadPoolExecutor(num_threads, "landing")
        self._coming: list[list[Future[int]]] = [
            [self._threads.submit(bring) for bring in pieces] for pieces in portions
        ]
        self._num_awaited = 0
        """Portions that are known to be there, the first ones."""
        self._num_bytes = 0
        self._on_finished: Callable[[], None] | None = on_finished

    @property
    def num_bytes(self) -> int:
        """What has come, once all has."""
        return self._num_bytes

    def wait_for(self, portion: int) -> None:
        """Returns when it is there, with all before it. Raises: `OSError`."""
        while self._num_awaited <= portion:
            self._num_bytes += sum([piece.result() for piece in self._coming[self._num_awaited]])
            self._num_awaited += 1

    def finish(self) -> None:
        """Returns when all is there. Raises: `OSError`."""
        self.wait_for(len(self._coming) - 1)
        self.abandon()
        if self._on_finished is not None:
            self._on_finished()
            self._on_finished = None

    def abandon(self) -> None:
        """Pieces that nobody has begun with are left out; the others end first."""
        self._threads.shutdown(wait=True, cancel_futures=True)
