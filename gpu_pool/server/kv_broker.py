"""Who has how much of the KV memory that a node's models share.

Pure: hears what cores wish and give, says what they are granted and what is claimed back. Must not
know slabs or processes. A model for which somebody waits goes before one that would only keep more
prefixes; among those that are waited for, who has least comes first, and where nothing is free the
others are to give up what they do not use: those that nobody waits for all they have, the rest what
they have beyond an even part. What is claimed counts as theirs until it has really gone; who says
that it cannot give for now stays asked, and others are asked as if it were not.
Units: bytes. Read next: `gpu_pool.kv.shared_room` (a core's side), `core_supervisor`.
"""

from dataclasses import dataclass
from typing import Protocol

from contracts.errors import InvariantBroken
from contracts.ids import ModelName
from gpu_pool.engine.messages import RoomNews


class RoomUser(Protocol):
    """The way to a core that shares memory. Neither call may raise."""

    def grant_room(self, num_bytes: int) -> None:
        """So much more is its own."""
        ...

    def claim_room(self, num_bytes: int) -> None:
        """So much more is to go; 0: nothing of what was claimed before is wanted any more."""
        ...


@dataclass(slots=True)
class _Part:
    """One core's part."""

    user: RoomUser
    num_bytes: int = 0
    """It has, or may still have."""
    wish: int = 0
    is_urgent: bool = False
    claimed: int = 0
    """Of what it has, is to go."""
    late: int = 0
    """Of what is claimed, is in use: it may be long until that goes."""


class KvBroker:
    """The shared memory of one node."""

    def __init__(self, shared_bytes: int) -> None:
        """All is free."""
        self.shared_bytes = shared_bytes
        self._parts: dict[ModelName, _Part] = {}

    @property
    def free_bytes(self) -> int:
        """What nobody has."""
        return self.shared_bytes - sum(part.num_bytes for part in self._parts.values())

    def read(self, name: ModelName) -> int:
        """What a model has."""
        part = self._parts.get(name)
        return 0 if part is None else part.num_bytes

    def join(self, name: ModelName, user: RoomUser) -> None:
        """A core came up, with nothing."""
        self._parts[name] = _Part(user)

    def leave(self, name: ModelName) -> None:
        """A core is gone, with all that it had."""
        if self._parts.pop(name, None) is not None:
            self._settle()

    def hear(self, name: ModelName, news: RoomNews) -> None:
        """What a core says. Raises: `InvariantBroken` when it gives what it does not have."""
        part = self._parts.get(name)
        if part is None:  # its last words
            return
        if not 0 <= news.given_bytes <= part.num_bytes:
            raise InvariantBroken("An engine core gives memory that it does not have.")
        part.num_bytes -= news.given_bytes
        part.claimed = max(0, part.claimed - news.given_bytes)
        late = part.late if news.late_bytes is None else news.late_bytes
        part.late = min(late, part.claimed)  # since it spoke, a claim may have been waived
        if news.wish is not None:
            part.wish, part.is_urgent = news.wish.num_bytes, news.wish.is_urgent
        self._settle()

    def _settle(self) -> None:
        """Hands out what is free, and claims what is missing."""
        urgent = [part for part in self._parts.values() if part.wish and part.is_urgent]
        self._hand_out(urgent)
        missing = sum(part.wish for part in urgent)
        if missing:
            self._claim(missing, len(urgent))
            return
        self._waive()
        self._hand_out([part for part in self._parts.values() if part.wish])

    def _hand_out(self, wishing: list[_Part]) -> None:
        """Gives each what it wishes while something is free, who has least first."""
        for part in sorted(wishing, key=lambda part: part.num_bytes):
            granted = min(part.wish, self.free_bytes)
            if granted > 0:
                part.num_bytes += granted
                part.wish -= granted
                part.user.grant_room(granted)

    def _claim(self, missing: int, num_urgent: int) -> None:
        """Claims what is missing, as far as it is not on its way yet."""
        missing -= sum(part.claimed - part.late for part in self._parts.values())
        even = self.shared_bytes // num_urgent
        idle_first = sorted(
            self._parts.values(), key=lambda part: (part.is_urgent, -part.num_bytes)
        )
        for part in idle_first:
            kept = even if part.wish and part.is_urgent else 0
            claimed = min(missing - part.late, part.num_bytes - part.claimed - kept)
            if claimed > 0:
                missing -= claimed
                part.claimed += claimed
                part.user.claim_room(claimed)

    def _waive(self) -> None:
        """Nobody waits: what has not gone yet may stay."""
        for part in self._parts.values():
            if part.claimed:
                part.claimed = part.late = 0
                part.user.claim_room(0)
