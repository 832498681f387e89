"""Where sessions were last: by this gateway's own word, and by that of nodes.

Keys are of the account's own namespace (`prefix_keys.hash_session`), so that nobody can follow or
move another's session. Bounded by count and by idle time; what nodes tell has room of its own, so
that a large fleet's sessions crowd out none of this gateway's. Read next: `gateway.routing.search`,
which decides whether a session may stay.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

from xxhash import xxh3_64_intdigest

from contracts.ids import NodeId

_MAX_RENDEZVOUS: Final = 64
_SURE_S: Final = 4.0
"""Nodes tell what is up to three seconds old: one's own word is worth more for that long."""
_Places = OrderedDict[int, tuple[NodeId, float]]


class SessionMap:
    """Sessions by key."""

    def __init__(self, max_sessions: int, idle_s: float) -> None:
        """Forgets the least recently used beyond `max_sessions`, and any idle for `idle_s`."""
        self._max_sessions = max_sessions
        self._idle_s = idle_s
        self._own: _Places = OrderedDict()
        self._told: _Places = OrderedDict()

    def __len__(self) -> int:
        """Sessions remembered, those that are idle for too long included."""
        return len(self._own) + len(self._told)

    def find(self, session: int, now_s: float) -> NodeId | None:
        """Where the session was last; None when that is forgotten."""
        place = self._own.get(session)
        told = self._told.get(session)
        if told is not None and (place is None or told[1] > place[1] + _SURE_S):
            place = told
        return None if place is None or now_s - place[1] > self._idle_s else place[0]

    def pin(self, session: int, node_id: NodeId, now_s: float) -> None:
        """The session is sent to `node_id` now."""
        self._put(self._own, (session,), (node_id, now_s))

    def hear(self, sessions: Iterable[int], node_id: NodeId, now_s: float) -> None:
        """`node_id` says that these have been there lately.

        Two nodes that one has just been to both say so; the later word counts.
        """
        self._put(self._told, sessions, (node_id, now_s))

    def _put(self, places: _Places, sessions: Iterable[int], place: tuple[NodeId, float]) -> None:
        """Remembers a place, one object for all of them, and forgets others where there is no
        room.
        """
        for session in sessions:
            places[session] = place
            places.move_to_end(session)
        for _ in range(len(places) - self._max_sessions):
            places.popitem(last=False)


def choose_first_place(session: int, node_ids: Sequence[NodeId]) -> NodeId:
    """Where a session begins: gateways that see the same nodes agree without a word.

    Rendezvous hashing, so that a node that comes or goes moves only its own share. Of more than
    `_MAX_RENDEZVOUS` nodes it is over two that the session picks by its remainder, which is quick
    and moves most sessions that begin while the number of nodes changes.
    """
    if len(node_ids) > _MAX_RENDEZVOUS:
        first = session % len(node_ids)
        node_ids = [node_ids[(first + step) % len(node_ids)] for step in range(2)]
    return max(node_ids, key=lambda node_id: xxh3_64_intdigest(node_id.encode(), session))
