"""Whose turn it is among the requests that wait for one model.

Owns the lines: one for each priority, account and set of regions, each in order of arrival. The
highest priority goes first, in it the account that was served least, in that the request that came
first. A line whose regions a node is not in is passed over, so that nobody who may only go
elsewhere is in anyone's way. Pure. Read next: `gateway.fair_queue.model_queue`.
"""

from bisect import insort
from collections.abc import Callable, Iterator
from operator import attrgetter

import msgspec

from contracts.fair_order import FairOrder
from contracts.ids import AccountId, RegionId
from gateway.fair_queue.waiter import Waiter

_by_start = attrgetter("started_s")
Regions = tuple[RegionId, ...] | None
"""None means any."""


class LineKey(msgspec.Struct, frozen=True):
    """Who stands in a line."""

    priority: int
    account_id: AccountId
    regions: Regions


class Lines:
    """All lines of a model."""

    def __init__(self, order: FairOrder) -> None:
        """Nobody waits; `order` counts what accounts were served."""
        self._order = order
        self._lines: dict[LineKey, list[Waiter]] = {}

    def join(self, waiter: Waiter) -> None:
        """Lets a request wait, in the place of its line that its age gives it."""
        insort(self._lines.setdefault(_find_key(waiter), []), waiter, key=_by_start)
        self._order.join(waiter.account_id)

    def leave(self, waiter: Waiter) -> None:
        """The request waits no more, wherever it stood."""
        key = _find_key(waiter)
        self._lines[key].remove(waiter)
        if not self._lines[key]:
            del self._lines[key]
        self._order.leave(waiter.account_id)

    def walk(self, may_go: Callable[[Regions], bool]) -> Iterator[Waiter]:
        """Requests in the order of their turns, of lines whose regions pass; ends when one leaves.

        Of a line, all: its next one may be taken where its first is not.
        """
        for key in sorted(filter(lambda key: may_go(key.regions), self._lines), key=self._rank):
            yield from self._lines[key]

    def __iter__(self) -> Iterator[Waiter]:
        """All, in no order that matters."""
        for line in self._lines.values():
            yield from line

    def _rank(self, key: LineKey) -> tuple[int, int, float]:
        """Sorts lines; equals by who came first."""
        served = self._order.read(key.account_id)
        return (-key.priority, served, self._lines[key][0].started_s)


def _find_key(waiter: Waiter) -> LineKey:
    """The line that the request stands in."""
    return LineKey(waiter.priority, waiter.account_id, waiter.need.allowed_regions)
