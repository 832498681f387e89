"""Whose heartbeats are not believed now, why, and when the log hears of it.

A node that is refused writes on, about once a second: the log hears when that begins, when the
reason is another one, and once a minute for as long as it lasts. Pure: time is handed in.
Read next: `gateway.membership.desk`.
"""

from collections.abc import Collection
from typing import Final

from contracts.ids import NodeId
from contracts.membership import HeartbeatRefusal, HeartbeatRefused

AGAIN_S: Final = 60.0
"""Between two lines on one node and one reason, however often it comes and goes."""
_WORDS: Final = {
    HeartbeatRefusal.MALFORMED: "what it writes into the store of members cannot be read",
    HeartbeatRefusal.SIGNATURE: "what it writes into the store of members is not signed with this "
    "gateway's key",
    HeartbeatRefusal.CLOCK: "its word in the store of members is old, or of a clock that is far "
    "from this gateway's",
    HeartbeatRefusal.REPLAY: "its word in the store of members is older than its last one",
    HeartbeatRefusal.ADDRESS: "it is to be reached in a way that its enrolment does not allow",
    HeartbeatRefusal.REGION: "it says it is elsewhere than its enrolment does",
}


class RefusedHeartbeats:
    """One gateway's, of all nodes."""

    def __init__(self) -> None:
        """Nobody is refused."""
        self._words: dict[NodeId, str] = {}
        self._logged_s: dict[tuple[NodeId, HeartbeatRefusal], float] = {}

    def find(self, node_id: NodeId) -> str | None:
        """Why the node's last heartbeat changed nothing; None: it was believed."""
        return self._words.get(node_id)

    def note(self, node_id: NodeId, refused: HeartbeatRefused, now_s: float) -> bool:
        """The node's word is not believed; True when the log should say so."""
        self._words[node_id] = refused.words or _WORDS[refused.reason]
        logged_s = self._logged_s.get((node_id, refused.reason))
        if logged_s is not None and now_s - logged_s < AGAIN_S:
            return False
        self._logged_s[node_id, refused.reason] = now_s
        return True

    def forget(self, node_id: NodeId) -> None:
        """The node is believed, or says nothing any more."""
        self._words.pop(node_id, None)

    def keep_only(self, enrolled: Collection[NodeId], speaking: Collection[NodeId]) -> None:
        """Who is not enrolled any more, or says nothing, is not refused either."""
        for pair in [pair for pair in self._logged_s if pair[0] not in enrolled]:
            del self._logged_s[pair]
        for node_id in self._words.keys() - (set(enrolled) & set(speaking)):
            self.forget(node_id)
