"""Who may wait: bounds in requests, tokens and bytes, and who gives way when they are reached.

A queue that is full of one account's requests is no queue for the others. So whoever comes takes
the place of the newest request of the account that holds most, if that holds more than the
comer's own account then does; and of a lower priority before all others. Pure.
Read next: `gateway.fair_queue.queue`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from contracts.ids import AccountId
from gateway.fair_queue.waiter import Waiter

_WHOLE: Final = 1 << 20
"""All that a crowd may hold; a request's size is its largest share of it, in requests, tokens or
bytes."""
_GroupKey = tuple[int, AccountId]
"""Priority and account."""


@dataclass(frozen=True, slots=True)
class CrowdBounds:
    """What all that wait may come to. One that is alone may exceed tokens and bytes."""

    max_requests: int
    max_tokens: int
    max_bytes: int

    def halve(self) -> "CrowdBounds":
        """What those of one model may come to: another that is full has room, too."""
        requests, tokens, size = self.max_requests, self.max_tokens, self.max_bytes
        return CrowdBounds((requests + 1) // 2, (tokens + 1) // 2, (size + 1) // 2)

    def measure(self, waiter: Waiter) -> int:
        """The size of a request."""
        shares = (
            _WHOLE / max(self.max_requests, 1),
            _WHOLE * waiter.num_tokens / self.max_tokens,
            _WHOLE * waiter.num_bytes / self.max_bytes,
        )
        return int(max(shares)) + 1


class _Group:
    """An account's requests of one priority."""

    __slots__ = ("size", "waiters")

    def __init__(self) -> None:
        """None."""
        self.waiters: dict[Waiter, None] = {}
        """The newest is the last."""
        self.size = 0


class Crowd:
    """All that wait within some bounds."""

    def __init__(self, bounds: CrowdBounds) -> None:
        """Nobody waits."""
        self._bounds = bounds
        self._groups: dict[_GroupKey, _Group] = {}
        self.num_requests = 0
        self.num_tokens = 0
        self.num_bytes = 0

    def add(self, waiter: Waiter) -> None:
        """One more."""
        group = self._groups.setdefault(_find_key(waiter), _Group())
        group.waiters[waiter] = None
        group.size += self._bounds.measure(waiter)
        self._count(waiter, 1)

    def remove(self, waiter: Waiter) -> None:
        """One less."""
        key = _find_key(waiter)
        group = self._groups[key]
        del group.waiters[waiter]
        group.size -= self._bounds.measure(waiter)
        if not group.waiters:
            del self._groups[key]
        self._count(waiter, -1)

    def find_room(self, newcomer: Waiter, leaving: Sequence[Waiter] = ()) -> list[Waiter] | None:
        """Who has to give way for `newcomer`, in the order of leaving, when those that are
        `leaving` for it anyway are gone; None: it may not wait.
        """
        orders = {key: list(self._groups[key].waiters) for key in map(_find_key, leaving)}
        for waiter in leaving:
            self.remove(waiter)
        displaced: list[Waiter] = []
        own_size = self._measure_own(newcomer) + self._bounds.measure(newcomer)
        while not self._fits(newcomer):
            last = self._find_last(newcomer.priority, own_size)
            if last is None:
                break
            displaced.append(last)
            self.remove(last)
        has_room = self._fits(newcomer)
        for waiter in (*leaving, *reversed(displaced)):
            self.add(waiter)
        for key, waiters in orders.items():  # of those that leave, some are not the newest here
            self._groups[key].waiters = dict.fromkeys(waiters)
        return displaced if has_room else None

    def _fits(self, waiter: Waiter) -> bool:
        """True when the bounds hold with one more."""
        bounds = self._bounds
        if not self.num_requests:
            return bounds.max_requests > 0
        return (
            self.num_requests < bounds.max_requests
            and self.num_tokens + waiter.num_tokens <= bounds.max_tokens
            and self.num_bytes + waiter.num_bytes <= bounds.max_bytes
        )

    def _find_last(self, priority: int, own_size: int) -> Waiter | None:
        """The one that gives way to a comer of this priority, whose account would hold
        `own_size`; None: nobody does.
        """
        lowest = min((key[0] for key in self._groups), default=priority)
        if lowest > priority:
            return None
        groups = [group for key, group in self._groups.items() if key[0] == lowest]
        largest = max(groups, key=lambda group: group.size, default=None)
        if largest is None or (lowest == priority and largest.size <= own_size):
            return None
        return next(reversed(largest.waiters))

    def _measure_own(self, waiter: Waiter) -> int:
        """What the account of `waiter` holds at its priority."""
        group = self._groups.get(_find_key(waiter))
        return 0 if group is None else group.size

    def _count(self, waiter: Waiter, sign: int) -> None:
        self.num_requests += sign
        self.num_tokens += sign * waiter.num_tokens
        self.num_bytes += sign * waiter.num_bytes


def _find_key(waiter: Waiter) -> _GroupKey:
    """The group that the request belongs to."""
    return waiter.priority, waiter.account_id
