"""A few pages of one account at once: who asks much waits for itself, not others for it.

Owns who is being served and who waits. Pages ask the database, whose connections all accounts
share; a filter that finds nothing walks an account's whole log. Must not know what pages do.
Read next: `gateway.api.guard`.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from contracts.errors import ConcurrencyLimited
from contracts.ids import AccountId

AT_ONCE: Final = 4
"""Of one account; the database has ten connections for all."""
MAX_WAITING: Final = 32
"""Of one account; more are refused at once."""
PATIENCE_S: Final = 20.0
_RETRY_S: Final = 1.0


class Turns:
    """Gives turns in order of asking, by account."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        """`patience_s` is how long anyone waits."""
        self._patience_s = patience_s
        self._lanes: dict[AccountId, _Lane] = {}

    @property
    def num_accounts(self) -> int:
        """Accounts that have a turn or wait for one."""
        return len(self._lanes)

    @asynccontextmanager
    async def take(self, account_id: AccountId) -> AsyncGenerator[None]:
        """A turn until the end of the block. Raises: `ConcurrencyLimited`."""
        lane = self._lanes.setdefault(account_id, _Lane())
        if lane.num_known >= AT_ONCE + MAX_WAITING:
            raise _create_refusal()
        lane.num_known += 1
        try:
            try:
                async with asyncio.timeout(self._patience_s):
                    await lane.places.acquire()
            except TimeoutError:
                raise _create_refusal() from None
            try:
                yield
            finally:
                lane.places.release()
        finally:
            lane.num_known -= 1
            if not lane.num_known:
                del self._lanes[account_id]


class _Lane:
    """One account's requests."""

    def __init__(self) -> None:
        self.places = asyncio.Semaphore(AT_ONCE)
        self.num_known = 0
        """Served and waiting."""


def _create_refusal() -> ConcurrencyLimited:
    """The same sentence to those who waited and to those who need not begin to."""
    return ConcurrencyLimited(
        f"This account has {AT_ONCE} management requests under way and more waiting. Send fewer at "
        "once.",
        retry_after_s=_RETRY_S,
    )
