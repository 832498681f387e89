"""Which prompts' beginnings have lately been at this node, for gateways that did not send them.

Owns names and moments, bounded in number; must not know what a name stands for: they are the
router's own, hashes that say nothing here. What is asked for over and over is told now and then, so
that a report grows with the new text of prompts and not with all of it. Read next: `node_status`,
which reports them.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from contracts.prefix_keys import KEY_BYTES, MAX_TOLD_BYTES, pack_keys, unpack_keys
from gpu_pool.server.recent_sessions import TOLD_S

AGAIN_S: Final = 20.0
"""After which a name that is still in use is told again."""
_MAX_KEPT: Final = MAX_TOLD_BYTES // KEY_BYTES


class RecentPrefixes:
    """Names of prompts' beginnings in the order of their latest use."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        """None yet."""
        self._monotonic_s = monotonic_s
        self._told_s: OrderedDict[int, float] = OrderedDict()
        """When each was last news, least recently used first."""
        self._news_s: OrderedDict[int, float] = OrderedDict()
        """Those of them that are still being told, by that moment."""

    def note(self, packed: bytes) -> None:
        """A prompt has come: the names of its beginnings, from the shortest to the longest."""
        now_s = self._monotonic_s()
        told_s, news_s = self._told_s, self._news_s
        for key in reversed(unpack_keys(packed)):  # the shortest is to be forgotten last
            if now_s - told_s.get(key, float("-inf")) > AGAIN_S:
                told_s[key] = news_s[key] = now_s
                news_s.move_to_end(key)
            told_s.move_to_end(key)
        while len(told_s) > _MAX_KEPT:
            key, _ = told_s.popitem(last=False)
            news_s.pop(key, None)

    def pack_news(self) -> bytes:
        """What gateways that listened before may not know, the latest last."""
        oldest_s = self._monotonic_s() - TOLD_S
        while self._news_s and next(iter(self._news_s.values())) < oldest_s:
            self._news_s.popitem(last=False)
        return pack_keys(tuple(self._news_s))

    def pack_all(self) -> bytes:
        """What a gateway is told that has just come."""
        return pack_keys(tuple(self._told_s))
