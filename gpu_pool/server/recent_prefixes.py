"""Which prompts' beginnings have lately been at this node, for gateways that did not send them.

Owns names and moments, bounded in number, each account's apart; must not know what a name stands
for: they are the router's own, hashes that say nothing here. What is asked for over and over is
told now and then, so that a report grows with the new text of prompts and not with all of it. Read
next: `node_status`, which reports them.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from contracts.grant import Grant, RetentionClass
from contracts.ids import AccountId
from contracts.prefix_keys import (
    KEY_BYTES,
    MAX_PROMPT_KEYS,
    MAX_TOLD_BYTES,
    pack_keys,
    unpack_keys,
)
from gpu_pool.server.recent_sessions import TOLD_S

AGAIN_S: Final = 20.0
"""After which a name that is still in use is told again."""
WHOLE_S: Final = 4.0
"""The same where a prompt that has it brings news: gateways forget in the order of use, and must
not take its beginning for older than its end."""
KEPT_S: Final = 900.0
"""After which one that is not in use is told to nobody."""
_MAX_KEPT: Final = MAX_TOLD_BYTES // KEY_BYTES
_NEVER: Final = float("-inf")
_Moments = OrderedDict[int, float]


class RecentPrefixes:
    """Names of prompts' beginnings in the order of their latest use."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        """None yet."""
        self._monotonic_s = monotonic_s
        self._told_s: dict[AccountId, _Moments] = {}
        """When each was last news, by account, least recently used first."""
        self._num_kept = 0
        self._news_s: _Moments = OrderedDict()
        """Those of them that are still being told, by that moment."""

    def note_accepted(self, grant: Grant) -> None:
        """A request's prompt is being computed; nothing remains of those under retention `none`."""
        if grant.retention is RetentionClass.STANDARD:
            self.note(grant.account_id, grant.prefixes)

    def note(self, account_id: AccountId, packed: bytes) -> None:
        """The account has had a prompt computed: the names of its beginnings, from the shortest to
        the longest.
        """
        keys = unpack_keys(packed[: MAX_PROMPT_KEYS * KEY_BYTES])
        if not keys:
            return
        now_s, news_s = self._monotonic_s(), self._news_s
        told_s = self._told_s.setdefault(account_id, OrderedDict())
        has_news = keys[-1] not in told_s  # whoever has the last one has all others
        again_s = WHOLE_S if has_news else AGAIN_S
        self._num_kept -= len(told_s)
        for key in reversed(keys):  # the shortest is to be forgotten last
            if now_s - told_s.get(key, _NEVER) > again_s:
                told_s[key] = news_s[key] = now_s
                news_s.move_to_end(key)
            told_s.move_to_end(key)
        self._num_kept += len(told_s)
        self._trim()

    def pack_news(self) -> bytes:
        """What gateways that listened before may not know, the latest last: each at least once."""
        packed = pack_keys(tuple(self._news_s))
        oldest_s = self._monotonic_s() - TOLD_S
        while self._news_s and next(iter(self._news_s.values())) < oldest_s:
            self._news_s.popitem(last=False)
        return packed

    def pack_all(self) -> bytes:
        """What a gateway is told that has just come: of each account the latest last."""
        oldest_s = self._monotonic_s() - KEPT_S
        kept = self._told_s.values()
        return pack_keys([key for told_s in kept for key in told_s if told_s[key] >= oldest_s])

    def _trim(self) -> None:
        """Forgets what does not fit, of the account that has most: nobody crowds out others."""
        while self._num_kept > _MAX_KEPT:
            account_id, told_s = max(self._told_s.items(), key=lambda item: len(item[1]))
            num_forgotten = min(self._num_kept - _MAX_KEPT, len(told_s))
            for _ in range(num_forgotten):
                key, _ = told_s.popitem(last=False)
                self._news_s.pop(key, None)
            self._num_kept -= num_forgotten
            if not told_s:
                del self._told_s[account_id]
