"""Which sessions have lately been at this node, for gateways that did not send them.

Owns names and moments, bounded in number and time; must not know what a session is: the names are
the router's own, hashes that say nothing here. Read next: `node_status`, which reports them.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from contracts.fleet import MAX_SESSIONS

TOLD_S: Final = 2.5
"""How long a session is told: two reports at least, so that one may be lost."""


class RecentSessions:
    """Names of sessions in the order of their latest request."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        """None yet."""
        self._monotonic_s = monotonic_s
        self._seen_s: OrderedDict[int, float] = OrderedDict()

    def note(self, session: int) -> None:
        """A request of the session has come; 0 is no session."""
        if not session:
            return
        self._seen_s[session] = self._monotonic_s()
        self._seen_s.move_to_end(session)
        if len(self._seen_s) > MAX_SESSIONS:
            self._seen_s.popitem(last=False)

    def list_recent(self) -> tuple[int, ...]:
        """Those of the last `TOLD_S`, the latest last."""
        oldest_s = self._monotonic_s() - TOLD_S
        while self._seen_s and next(iter(self._seen_s.values())) < oldest_s:
            self._seen_s.popitem(last=False)
        return tuple(self._seen_s)
