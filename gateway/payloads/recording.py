"""What is kept of one request while it is served: two bounded copies of bytes.

Must not know what the bytes mean. Read next: `gateway.payloads.payload_log`.
"""

from typing import Final

from contracts.ids import AccountId
from gateway.payloads.room import Room

OVERHEAD_BYTES: Final = 512
"""What a request takes in memory besides its words: without it, empty ones would be free."""


class Recording:
    """One request's. All that it holds is taken from the room and not given back here."""

    __slots__ = (
        "_account_id",
        "_is_full",
        "_max_bytes",
        "_num_answered",
        "_pieces",
        "_room",
        "asked",
        "is_cut",
        "is_kept",
    )

    def __init__(
        self, body: bytes | bytearray, account_id: AccountId, max_bytes: int, room: Room
    ) -> None:
        """`max_bytes` hold for what is asked and for what is answered, each by itself.

        Without room for what is asked nothing is held, and nothing is to be kept.
        """
        asked = bytes(body[:max_bytes])
        self.is_kept = room.take(account_id, OVERHEAD_BYTES + len(asked))
        self.asked = asked if self.is_kept else b""
        self.is_cut = len(body) > max_bytes
        self._pieces: list[bytes] = []
        self._num_answered = 0
        self._is_full = False
        self._account_id = account_id
        self._max_bytes = max_bytes
        self._room = room

    @property
    def answered(self) -> bytes:
        """What has been heard, in one piece."""
        return b"".join(self._pieces)

    def hear(self, piece: bytes) -> None:
        """More of the answer has been sent."""
        if self._is_full:
            return
        held = self._hold(piece, self._max_bytes - self._num_answered)
        self._pieces.append(held)
        self._num_answered += len(held)
        self._is_full = len(held) < len(piece)  # what follows a gap is not kept

    def _hold(self, piece: bytes, max_bytes: int) -> bytes:
        """What of `piece` is kept."""
        if len(piece) > max_bytes:
            piece, self.is_cut = piece[:max_bytes], True
        if not self._room.take(self._account_id, len(piece)):
            self.is_cut = True
            return b""
        return piece
