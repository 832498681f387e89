"""All that waits for one model: its lines, its part of the bounds, what was served, its pace.

Pure. Read next: `gateway.fair_queue.queue`, which lets requests in and out.
"""

from collections.abc import Callable, Iterator
from typing import Final

from contracts.fair_order import FairOrder
from gateway.fair_queue.crowd import Crowd, CrowdBounds
from gateway.fair_queue.lines import Lines, Regions
from gateway.fair_queue.pace import Pace
from gateway.fair_queue.waiter import Waiter

_LONGEST_S: Final = 60.0
"""Beyond that nobody is told to wait: the world will have changed."""


class ModelQueue:
    """Who waits for a model, and what accounts were served since somebody does."""

    def __init__(
        self, bounds: CrowdBounds, now_s: float, create_order: Callable[[], FairOrder] = FairOrder
    ) -> None:
        """Nobody waits. `bounds` are those of the whole queue."""
        self._order = create_order()
        self._lines = Lines(self._order)
        self._pace = Pace(now_s)
        self._charged: set[Waiter] = set()
        """Those whose answers are not over yet."""
        self.crowd: Final = Crowd(bounds.halve())
        self.stuck: Final = set[object]()
        """Kinds of requests that the sweep under way has found no node for."""

    def __iter__(self) -> Iterator[Waiter]:
        """All that wait."""
        return iter(self._lines)

    def join(self, waiter: Waiter) -> None:
        """One more."""
        self.crowd.add(waiter)
        self._lines.join(waiter)

    def leave(self, waiter: Waiter) -> None:
        """One less."""
        self.crowd.remove(waiter)
        self._lines.leave(waiter)

    def find_next(
        self, may_go: Callable[[Regions], bool], takes: Callable[[Waiter], bool]
    ) -> Waiter | None:
        """Whose turn it is at a node that is in a region and takes a request or not."""
        return next(filter(takes, self._lines.walk(may_go)), None)

    def walk(self) -> Iterator[Waiter]:
        """All in the order of their turns; ends when one leaves."""
        return self._lines.walk(lambda regions: True)

    def charge(self, waiter: Waiter, now_s: float) -> None:
        """The request goes to a node: its account is served."""
        self._order.charge(waiter.account_id, waiter.num_tokens)
        self._charged.add(waiter)
        self._pace.note(waiter.num_tokens, now_s)

    def correct(self, waiter: Waiter, num_tokens: int) -> None:
        """What the request was charged with has come to `num_tokens`.

        Says nothing of one that was charged by a queue before this one: given back here, it would
        put its account before all others.
        """
        if waiter in self._charged:
            self._charged.remove(waiter)
            self._order.correct(waiter.account_id, num_tokens - waiter.num_tokens)

    def estimate_wait_s(self, num_tokens: int, now_s: float) -> float:
        """When all that waits, and so many tokens more, will have left: at the pace of late, else
        not sooner than the oldest has waited already.
        """
        left_s = self._pace.estimate_s(self.crowd.num_tokens + num_tokens, now_s)
        if left_s is None:
            left_s = now_s - min((waiter.started_s for waiter in self), default=now_s)
        return min(left_s, _LONGEST_S)
