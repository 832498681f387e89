"""Where sessions were last, for clients that name theirs.

Keys are of the account's own namespace (`prefix_keys.hash_session`), so that nobody can follow or
move another's session. Bounded by count and by idle time. Read next: `gateway.routing.choose_node`,
which decides whether a session may stay.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from xxhash import xxh3_64_intdigest

from contracts.ids import NodeId

_MAX_RENDEZVOUS: Final = 64


class SessionMap:
    """Sessions by key."""

    def __init__(self, max_sessions: int, idle_s: float) -> None:
        """Forgets the least recently used beyond `max_sessions`, and any idle for `idle_s`."""
        self._max_sessions = max_sessions
        self._idle_s = idle_s
        self._places: OrderedDict[int, tuple[NodeId, float]] = OrderedDict()

    def __len__(self) -> int:
        """Sessions remembered, those that are idle for too long included."""
        return len(self._places)

    def find(self, session: int, now_s: float) -> NodeId | None:
        """Where the session was last; None when that is forgotten."""
        place = self._places.get(session)
        if place is None:
            return None
        if now_s - place[1] > self._idle_s:
            del self._places[session]
            return None
        return place[0]

    def pin(self, session: int, node_id: NodeId, now_s: float) -> None:
        """The session is at `node_id` now."""
        self._places[session] = (node_id, now_s)
        self._places.move_to_end(session)
        if len(self._places) > self._max_sessions:
            self._places.popitem(last=False)


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
