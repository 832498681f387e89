"""Which accounts have a floor in every group: those that were active a while ago.

Must not know what a floor comes to. Read next: `block_pool`, `eviction`.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from contracts.ids import AccountId
from gpu_pool.kv.block_pool import BlockPool

_FLOOR_IDLE_MS: Final = 10 * 60 * 1000
"""An account keeps its floor for so long after its last request."""


class AccountFloors:
    """The accounts with a floor in `pools`."""

    def __init__(self, pools: Sequence[BlockPool]) -> None:
        """Nobody has one yet."""
        self._pools = tuple(pools)
        self._last_use_ms: OrderedDict[AccountId, int] = OrderedDict()
        """The account that was active last is at the end."""

    def note_use(self, account_id: AccountId, now_ms: int) -> None:
        """Gives `account_id` a floor, and takes it from those that were not seen for long."""
        if account_id not in self._last_use_ms:
            for pool in self._pools:
                pool.activate(account_id)
        self._last_use_ms[account_id] = now_ms
        self._last_use_ms.move_to_end(account_id)
        self.forget_idle(now_ms)

    def forget_idle(self, now_ms: int) -> None:
        """Takes their floors from accounts that were not seen for long."""
        while self._last_use_ms:
            oldest, used_ms = next(iter(self._last_use_ms.items()))
            if now_ms - used_ms < _FLOOR_IDLE_MS:
                return
            del self._last_use_ms[oldest]
            for pool in self._pools:
                pool.deactivate(oldest)
