"""Who is served next among accounts: the one that has been served least.

Owns a virtual counter per account: what was computed for it, weighted. An account that comes back
from idling starts where the least served active one stands, so that idling earns no credit; what it
was served beyond that stays counted. Engines order sequences by it, gateways the requests that wait
in front of them. Must not know either.
Source: Sheng et al., Fairness in Serving Large Language Models (OSDI 2024).
"""

from typing import Final

from contracts.ids import AccountId

PREFILL_WEIGHT: Final = 1
DECODE_WEIGHT: Final = 2
"""A decoded token costs more than a token of a prompt: it takes a place in a step of its own."""
_MAX_IDLE: Final = 4096
"""Idle accounts whose counters are remembered; beyond that those served least are forgotten."""


class FairOrder:
    """The counters of accounts that have something to do, or were served much lately."""

    def __init__(self) -> None:
        """Nobody has been served."""
        self._served: dict[AccountId, int] = {}
        self._num_live: dict[AccountId, int] = {}
        self._floor = 0
        """What the least served account had when it was last looked for; never falls."""

    @property
    def num_active(self) -> int:
        """Accounts that have something to do, waiting or under way."""
        return len(self._num_live)

    def join(self, account_id: AccountId) -> None:
        """Something of the account has come."""
        num_live = self._num_live.get(account_id, 0)
        if num_live == 0:
            self._raise_floor()
            self._served[account_id] = max(self._served.get(account_id, 0), self._floor)
        self._num_live[account_id] = num_live + 1

    def leave(self, account_id: AccountId) -> None:
        """Something of the account is over."""
        self._num_live[account_id] -= 1
        if self._num_live[account_id] == 0:
            self._raise_floor()
            del self._num_live[account_id]
            if len(self._served) > len(self._num_live) + _MAX_IDLE:
                self._forget()

    def charge(self, account_id: AccountId, amount: int) -> None:
        """Notes that something was computed for the account."""
        self._served[account_id] += amount

    def correct(self, account_id: AccountId, amount: int) -> None:
        """The same afterwards: what it took was `amount` more than noted. It may be forgotten."""
        if account_id in self._served:
            self._served[account_id] += amount

    def read(self, account_id: AccountId) -> int:
        """What the account was served; the least goes first."""
        return self._served[account_id]

    def _raise_floor(self) -> None:
        """Looks for the least served active account."""
        if self._num_live:
            least = min(self._served[account_id] for account_id in self._num_live)
            self._floor = max(self._floor, least)

    def _forget(self) -> None:
        """Drops idle accounts that would start at the floor anyway, then the least served half."""
        idle = [account_id for account_id in self._served if account_id not in self._num_live]
        idle.sort(key=self._served.__getitem__)
        for index, account_id in enumerate(idle):
            if self._served[account_id] <= self._floor or index < len(idle) // 2:
                del self._served[account_id]
