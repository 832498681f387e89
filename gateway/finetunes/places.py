"""How many uploads may be under way: of one account, and of all.

Owns who has a place; nobody waits for one. Belongs to one event loop. Must not know what is
uploaded. Read next: `gateway.finetunes.desk`.
"""

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager

from contracts.errors import ConcurrencyLimited, PoolSaturated
from contracts.ids import AccountId

_RETRY_S = 5.0


class UploadPlaces:
    """Places for uploads at this gateway."""

    def __init__(self, max_of_account: int, max_in_all: int) -> None:
        """All are free."""
        self._max_of_account = max_of_account
        self._max_in_all = max_in_all
        self._taken: Counter[AccountId] = Counter()

    @property
    def num_taken(self) -> int:
        """Uploads under way."""
        return self._taken.total()

    @contextmanager
    def take(self, account_id: AccountId) -> Generator[None]:
        """A place until the end of the block. Raises: `ConcurrencyLimited`, `PoolSaturated`."""
        if self._taken[account_id] >= self._max_of_account:
            raise ConcurrencyLimited(
                f"This account has {self._max_of_account} uploads under way. Wait for one to end.",
                retry_after_s=_RETRY_S,
            )
        if self.num_taken >= self._max_in_all:
            raise PoolSaturated("This gateway is taking in as many uploads as it can.")
        self._taken[account_id] += 1
        try:
            yield
        finally:
            self._taken[account_id] -= 1
            if not self._taken[account_id]:
                del self._taken[account_id]
