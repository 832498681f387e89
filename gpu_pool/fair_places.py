"""A few places that many accounts want: the next free one goes to who has used them least.

Owns who waits; must not know what the places are for.
Read next: `gpu_pool.structured.grammar_trial`, `gpu_pool.server.text.text_threads` (the callers).
"""

import asyncio
from collections import Counter, deque
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
        *,
        spares_last: bool = False,
        what: str = "requests",
    ) -> None:
        """So many may want a place at the same time, those who have one included. `spares_last`:
        of several places the last free one is kept from accounts that have another. `what` a
        refusal says there are too many of.
        """
        self._num_free = num_places
        self._max_wanting = max_wanting
        self._max_account_wanting = max_account_wanting
        self._monotonic_s = monotonic_s
        self._spares_last = spares_last and num_places > 1
        self._what = what
        self._num_wanting: Counter[AccountId] = Counter()
        self._num_held: Counter[AccountId] = Counter()
        self._lines: dict[AccountId, deque[asyncio.Future[None]]] = {}
        self._fair = FairOrder()

    @asynccontextmanager
    async def take(self, account: AccountId) -> AsyncGenerator[None]:
        """Has a place. Raises: `PoolSaturated` when too many want one."""
        began_s = await self.acquire(account)
        try:
            yield
        finally:
            self.release(account, began_s)

    async def acquire(self, account: AccountId) -> float:
        """Returns with a place, and since when it is had; `release` must follow.

        Raises: `PoolSaturated` when too many want one.
        """
        if self._num_wanting.total() >= self._max_wanting:
            raise PoolSaturated(f"Too many {self._what} are being prepared.")
        if self._num_wanting[account] >= self._max_account_wanting:
            raise PoolSaturated(f"Too many {self._what} of this account are being prepared.")
        self._num_wanting[account] += 1
        self._fair.join(account)
        try:
            await self._wait(account)
        except BaseException:
            self._leave(account)
            raise
        return self._monotonic_s()

    def release(self, account: AccountId, began_s: float) -> None:
        """A place is free that was had since then."""
        used_s = self._monotonic_s() - began_s
        self._fair.charge(account, int(used_s * _US_PER_S))
        self._leave(account)
        self._give_back(account)

    async def _wait(self, account: AccountId) -> None:
        """Returns with a place."""
        turn = asyncio.get_running_loop().create_future()
        self._lines.setdefault(account, deque()).append(turn)
        self._hand_out()
        try:
            await asyncio.shield(turn)  # who leaves stands in line until it is told so
        except asyncio.CancelledError:
            if turn.done():
                self._give_back(account)  # it was given a place just now
            else:
                self._lines[account].remove(turn)
                self._forget_empty(account)
            raise

    def _give_back(self, account: AccountId) -> None:
        """A place of the account is free."""
        self._num_free += 1
        self._num_held[account] -= 1
        if not self._num_held[account]:
            del self._num_held[account]
        self._hand_out()

    def _hand_out(self) -> None:
        """Gives free places to those whose turn it is."""
        while self._num_free:
            is_spared = self._spares_last and self._num_free == 1
            accounts = [one for one in self._lines if not (is_spared and self._num_held[one])]
            account = min(accounts, key=self._fair.read, default=None)
            if account is None:
                return
            self._num_free -= 1
            self._num_held[account] += 1
            self._lines[account].popleft().set_result(None)
            self._forget_empty(account)

    def _forget_empty(self, account: AccountId) -> None:
        """Nobody of the account may be waiting any more."""
        if not self._lines[account]:
            del self._lines[account]

    def _leave(self, account: AccountId) -> None:
        """One of the account wants none any more."""
        self._fair.leave(account)
        self._num_wanting[account] -= 1
        if not self._num_wanting[account]:
            del self._num_wanting[account]
