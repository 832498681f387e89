"""A few places that many accounts want: the next free one goes to who has used them least.

Owns who waits; must not know what the places are for. Read next: `grammar_trial` (the caller).
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from contracts.errors import PoolSaturated
from contracts.fair_order import FairOrder
from contracts.ids import AccountId

_US_PER_S = 1_000_000


class FairPlaces:
    """Places, and everybody who has one or waits for one. Used by one event loop."""

    def __init__(
        self,
        num_places: int,
        max_wanting: int,
        max_account_wanting: int,
        monotonic_s: Callable[[], float],
    ) -> None:
        """So many may want a place at the same time, those who have one included."""
        self._num_free = num_places
        self._max_wanting = max_wanting
        self._max_account_wanting = max_account_wanting
        self._monotonic_s = monotonic_s
        self._num_wanting: dict[AccountId, int] = {}
        self._lines: dict[AccountId, deque[asyncio.Future[None]]] = {}
        self._fair = FairOrder()

    @asynccontextmanager
    async def take(self, account: AccountId) -> AsyncGenerator[None]:
        """Has a place. Raises: `PoolSaturated` when too many want one."""
        if sum(self._num_wanting.values()) >= self._max_wanting:
            raise PoolSaturated("Too many schemas are being prepared.")
        if self._num_wanting.get(account, 0) >= self._max_account_wanting:
            raise PoolSaturated("Too many schemas of this account are being prepared.")
        self._num_wanting[account] = self._num_wanting.get(account, 0) + 1
        self._fair.join(account)
        try:
            await self._wait(account)
            began_s = self._monotonic_s()
            try:
                yield
            finally:
                used_s = self._monotonic_s() - began_s
                self._fair.charge(account, int(used_s * _US_PER_S))
                self._pass_on()
        finally:
            self._fair.leave(account)
            self._num_wanting[account] -= 1
            if not self._num_wanting[account]:
                del self._num_wanting[account]

    async def _wait(self, account: AccountId) -> None:
        """Returns with a place."""
        if self._num_free:
            self._num_free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        line = self._lines.setdefault(account, deque())
        line.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._pass_on()  # it was given a place just now
            else:
                line.remove(turn)
                if not line:
                    del self._lines[account]
            raise

    def _pass_on(self) -> None:
        """Gives a place to the next one who waits, or keeps it."""
        if not self._lines:
            self._num_free += 1
            return
        account = min(self._lines, key=self._fair.read)
        line = self._lines[account]
        line.popleft().set_result(None)
        if not line:
            del self._lines[account]
