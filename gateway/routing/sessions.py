"""Where sessions were last: by this gateway's own word, and by that of nodes.

Keys are of the account's own namespace (`prefix_keys.hash_session`), so that nobody can follow or
move another's session. Bounded by count and by idle time; who has most gives up first, so that one
account's many sessions end nobody else's, and what nodes tell has room of its own, of which no node
takes another's part. Read next: `gateway.routing.search`, which decides whether a session may stay.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import islice, takewhile
from typing import Final

from xxhash import xxh3_64_intdigest

from contracts.ids import NodeId
from gateway.fair_share import find_part

_MAX_RENDEZVOUS: Final = 64
_SURE_S: Final = 4.0
"""Nodes tell what is up to three seconds old: one's own word is worth more for that long."""
_FEW: Final = 64
"""Such a part of all is forgotten at once: to find who has most takes a look at all of them."""
_Places = OrderedDict[int, tuple[NodeId, float]]


class SessionMap:
    """Sessions by key."""

    def __init__(self, max_sessions: int, idle_s: float) -> None:
        """Forgets what is beyond `max_sessions`, and any idle for `idle_s`."""
        self._max_sessions = max_sessions
        self._idle_s = idle_s
        self._own: OrderedDict[int, _Places] = OrderedDict()
        """By whose they are, least recently used first, both those who have them and theirs."""
        self._num_own = 0
        self._told: dict[int, tuple[NodeId, float]] = {}
        self._tellers: dict[NodeId, dict[int, None]] = {}
        """Who has told of which, the latest last."""

    def __len__(self) -> int:
        """Sessions remembered, those that are idle for too long included."""
        return self._num_own + len(self._told)

    def find(self, owner: int, session: int, now_s: float) -> NodeId | None:
        """Where the session was last; None when that is forgotten."""
        places = self._own.get(owner)
        place = None if places is None else places.get(session)
        told = self._told.get(session)
        if told is not None and (place is None or told[1] > place[1] + _SURE_S):
            place = told
        return None if place is None or now_s - place[1] > self._idle_s else place[0]

    def pin(self, owner: int, session: int, node_id: NodeId, now_s: float) -> None:
        """The session of that account, whatever number stands for it, is sent to `node_id` now."""
        places = self._own.get(owner)
        if places is None:
            places = self._own[owner] = OrderedDict()
        self._own.move_to_end(owner)
        num_before = len(places)
        places[session] = (node_id, now_s)
        places.move_to_end(session)
        self._num_own += len(places) - num_before
        if self._num_own > self._max_sessions:
            self._drop_idle(now_s - self._idle_s)
            self._trim()

    def hear(self, sessions: Iterable[int], node_id: NodeId, now_s: float) -> None:
        """`node_id` says that these have been there lately.

        Two nodes that one has just been to both say so; the later word counts. One object stands
        for the place of all of them.
        """
        place = (node_id, now_s)
        own = self._tellers.setdefault(node_id, {})
        for session in sessions:
            before = self._told.get(session)
            if before is not None:
                del self._tellers[before[0]][session]
            self._told[session] = place
            own[session] = None
        if len(self._told) > self._max_sessions:
            self._drop_idle_told(now_s - self._idle_s)
            self._trim_told()

    def forget(self, node_id: NodeId) -> None:
        """The node is here no more: what it has told of counts for nobody."""
        for session in self._tellers.pop(node_id, ()):
            del self._told[session]

    def _drop_idle(self, since_s: float) -> None:
        """Forgets what was used last before then, so that it takes no room from anybody's."""
        for owner, places in list(self._own.items()):
            while places and next(iter(places.values()))[1] < since_s:
                places.popitem(last=False)
                self._num_own -= 1
            if not places:
                del self._own[owner]

    def _drop_idle_told(self, since_s: float) -> None:
        """Forgets what nodes have told of before then."""
        for node_id, own in list(self._tellers.items()):
            for session in list(takewhile(lambda one: self._told[one][1] < since_s, own)):
                del own[session], self._told[session]
            if not own:
                del self._tellers[node_id]

    def _trim(self) -> None:
        """Makes some room: whoever has most gives up what was used least recently."""
        room = self._max_sessions - self._max_sessions // _FEW
        part = find_part(map(len, self._own.values()), room)
        for owner in list(self._own):
            places = self._own[owner]
            for _ in range(min(len(places) - part, self._num_own - room)):
                places.popitem(last=False)
                self._num_own -= 1
            if not places:
                del self._own[owner]
            if self._num_own == room:
                break

    def _trim_told(self) -> None:
        """Makes some room: the node that has told of most gives up what it told of first."""
        room = self._max_sessions - self._max_sessions // _FEW
        part = find_part(map(len, self._tellers.values()), room)
        for node_id, own in list(self._tellers.items()):
            num_over = min(len(own) - part, len(self._told) - room)
            for session in list(islice(own, max(num_over, 0))):
                del own[session], self._told[session]
            if not own:
                del self._tellers[node_id]


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
