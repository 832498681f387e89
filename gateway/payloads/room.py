"""How much of payloads may be in memory at once, and how much of that one account's.

Read next: `gateway.payloads.recording`. Units: bytes.
"""

from collections import Counter
from typing import Final

from contracts.ids import AccountId

_SHARE: Final = 2
"""An account has at most one part in so many, so that no other goes unlogged because of it."""


class Room:
    """What recordings and the queue hold together."""

    def __init__(self, max_bytes: int) -> None:
        """Nothing is held yet."""
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._by_account: Counter[AccountId] = Counter()

    @property
    def num_bytes(self) -> int:
        """What is held."""
        return self._num_bytes

    def take(self, account_id: AccountId, num_bytes: int) -> bool:
        """True when so much more may be held, and is from now on."""
        if (
            self._num_bytes + num_bytes > self._max_bytes
            or self._by_account[account_id] + num_bytes > self._max_bytes // _SHARE
        ):
            return False
        self._num_bytes += num_bytes
        self._by_account[account_id] += num_bytes
        return True

    def give_back(self, account_id: AccountId, num_bytes: int) -> None:
        """So much is held no more."""
        self._num_bytes -= num_bytes
        self._by_account[account_id] -= num_bytes
        if not self._by_account[account_id]:
            del self._by_account[account_id]
