"""Which sessions have lately been at this node, for gateways that did not send them.

Owns names and moments, bounded in number and time, and of whoever has most first: many sessions of
one account take no room from another that has fewer. Must not know what a session is: the names are
the router's own, hashes that say nothing here. Read next: `node_status`, which reports them.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from contracts.fleet import MAX_SESSIONS
from contracts.ids import AccountId

TOLD_S: Final = 2.5
"""How long a session is told: two reports at least, so that one may be lost."""


class RecentSessions:
    """Names of sessions in the order of their latest request.

    Of n accounts each keeps its latest `MAX_SESSIONS` / n at least. Every `note` is constant in
    time on average: an account's count changes by one at a time, so that whoever has most is always
    at hand.
    """

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        """None yet."""
        self._monotonic_s = monotonic_s
        self._seen_s: OrderedDict[tuple[AccountId, int], float] = OrderedDict()
        self._own: dict[AccountId, OrderedDict[int, None]] = {}
        """The same by account, least recently used first; none is empty."""
        self._with_count: dict[int, dict[AccountId, None]] = {}
        """Accounts by how many sessions they have; none is empty."""
        self._most = 0
        """What the account with most has."""

    def note(self, account_id: AccountId, session: int) -> None:
        """A request of the account's session has come; 0 is no session."""
        if not session:
            return
        own = self._own.setdefault(account_id, OrderedDict())
        if session not in own:
            own[session] = None
            self._count(account_id, len(own) - 1, len(own))
        own.move_to_end(session)
        self._seen_s[account_id, session] = self._monotonic_s()
        self._seen_s.move_to_end((account_id, session))
        if len(self._seen_s) > MAX_SESSIONS:
            self._forget_old()
        if len(self._seen_s) > MAX_SESSIONS:
            crowder = next(iter(self._with_count[self._most]))
            self._forget(crowder, next(iter(self._own[crowder])))

    def list_recent(self) -> tuple[int, ...]:
        """Those of the last `TOLD_S`, the latest last."""
        self._forget_old()
        return tuple(session for _, session in self._seen_s)

    def _forget_old(self) -> None:
        """Takes out what is told no more."""
        oldest_s = self._monotonic_s() - TOLD_S
        while self._seen_s:
            (account_id, session), seen_s = next(iter(self._seen_s.items()))
            if seen_s >= oldest_s:
                return
            self._forget(account_id, session)

    def _forget(self, account_id: AccountId, session: int) -> None:
        """Takes a session out."""
        own = self._own[account_id]
        del self._seen_s[account_id, session], own[session]
        if not own:
            del self._own[account_id]
        self._count(account_id, len(own) + 1, len(own))

    def _count(self, account_id: AccountId, before: int, after: int) -> None:
        """Keeps who has how many; the two differ by one."""
        if before:
            del self._with_count[before][account_id]
            if not self._with_count[before]:
                del self._with_count[before]
        if after:
            self._with_count.setdefault(after, {})[account_id] = None
        if after > self._most or self._most not in self._with_count:
            self._most = after
