"""What goes to a node next: short messages first, then long bodies, a piece of each in turn.

Pure bookkeeping without I/O. Owns the order inside frames: nothing overtakes the `Open` of its own
stream, an `Abort` overtakes what is left of every body, and no frame grows beyond its bound.
Read next: `gateway.upstream.connection`, whose writer drains it.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

from contracts.kv_transfer import KvImport
from contracts.wire import FRAGMENT_BYTES, Abort, Body, Open, ToNode

Entry = tuple[int, int, ToNode]
MAX_FRAME_PAYLOAD_BYTES: Final = 1024 * 1024
"""Far below what the node accepts; a shorter frame lets the next short message in sooner."""


@dataclass(slots=True)
class _Remainder:
    """What is left of one stream's body."""

    stream_id: int
    attempt: int
    body: memoryview


class Outbox:
    """Entries that wait for the writer."""

    def __init__(self) -> None:
        """Empty."""
        self._short: list[Entry] = []
        self._short_bytes = 0
        """Bytes of the bodies and exports inside `_short`."""
        self._bodies: deque[_Remainder] = deque()

    def add(self, stream_id: int, attempt: int, message: ToNode) -> None:
        """Adds a short message."""
        self._short.append((stream_id, attempt, message))
        self._short_bytes += _measure(message)

    def open(
        self,
        stream_id: int,
        attempt: int,
        sealed: bytes,
        credit: int,
        body: bytes,
        sealed_ticket: bytes = b"",
    ) -> None:
        """Adds an `Open` with the first piece of `body`; the rest follows in turn."""
        first = body if len(body) <= FRAGMENT_BYTES else body[:FRAGMENT_BYTES]
        self._short.append(
            (stream_id, attempt, Open(sealed, len(body), credit, first, sealed_ticket))
        )
        self._short_bytes += len(first)
        if first is not body:
            rest = memoryview(body)[FRAGMENT_BYTES:]
            self._bodies.append(_Remainder(stream_id, attempt, rest))

    def abort(self, stream_id: int, attempt: int) -> None:
        """Adds an `Abort` and drops what is left of that stream's body."""
        if self._bodies:
            self._bodies = deque(
                item
                for item in self._bodies
                if (item.stream_id, item.attempt) != (stream_id, attempt)
            )
        self._short.append((stream_id, attempt, Abort()))

    def take_frame(self) -> list[Entry]:
        """The entries of the next frame, in order; empty when nothing is left."""
        entries, size = self._take_short()
        while self._bodies and not self._short and size < MAX_FRAME_PAYLOAD_BYTES:
            item = self._bodies.popleft()
            piece, item.body = item.body[:FRAGMENT_BYTES], item.body[FRAGMENT_BYTES:]
            entries.append((item.stream_id, item.attempt, Body(bytes(piece))))
            size += len(piece)
            if item.body:
                self._bodies.append(item)
        return entries

    def _take_short(self) -> tuple[list[Entry], int]:
        """Short messages up to a frame's bound, and the bytes of the bodies among them."""
        if self._short_bytes <= MAX_FRAME_PAYLOAD_BYTES:
            entries, size = self._short, self._short_bytes
            self._short, self._short_bytes = [], 0
            return entries, size
        size = count = 0
        for _, _, message in self._short:
            if size >= MAX_FRAME_PAYLOAD_BYTES:
                break
            count += 1
            size += _measure(message)
        entries, self._short = self._short[:count], self._short[count:]
        self._short_bytes -= size
        return entries, size


def _measure(message: ToNode) -> int:
    """Bytes of what can be long in a short message."""
    if isinstance(message, Open):
        return len(message.body)
    return message.exported.num_frame_bytes if isinstance(message, KvImport) else 0
