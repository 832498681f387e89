"""What goes to a node next: short messages, then long bodies and files, a piece of each in turn.

Pure bookkeeping without I/O. Owns the order inside frames: nothing overtakes the `Open` of its own
stream, an `Abort` overtakes what is left of every body, and no frame grows beyond its bound.
Read next: `gateway.upstream.connection`, whose writer drains it.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from contracts.adapters import AdapterPiece
from contracts.kv_transfer import KvImport
from contracts.wire import FRAGMENT_BYTES, Abort, Body, Open, ToNode

Entry = tuple[int, int, ToNode]
MAX_FRAME_PAYLOAD_BYTES: Final = 1024 * 1024
"""Far below what the node accepts; a shorter frame lets the next short message in sooner."""


@dataclass(slots=True)
class _Remainder:
    """What is left of one stream's body, or of what it was asked for of its adapter."""

    stream_id: int
    attempt: int
    body: memoryview
    first: int | None = None
    """Where this begins in the adapter's file; None: it is a body."""
    note_gone: Callable[[], None] | None = None
    """Told once nothing is left, whether it was sent or dropped."""

    def take(self) -> tuple[ToNode, int]:
        """The next piece, and its length."""
        piece, self.body = self.body[:FRAGMENT_BYTES], self.body[FRAGMENT_BYTES:]
        if self.first is None:
            return Body(bytes(piece)), len(piece)
        first, self.first = self.first, self.first + len(piece)
        return AdapterPiece(first, bytes(piece)), len(piece)


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

    def add_pieces(
        self,
        stream_id: int,
        attempt: int,
        first: int,
        data: bytes,
        note_gone: Callable[[], None],
    ) -> None:
        """Adds bytes of an adapter's file, which take turns with bodies; `note_gone` is called when
        all are on their way, or nobody wants them any more. It must not raise.
        """
        rest = memoryview(data)
        self._bodies.append(_Remainder(stream_id, attempt, rest, first, note_gone))

    def abort(self, stream_id: int, attempt: int) -> None:
        """Adds an `Abort` and drops what is left of that stream's body and pieces."""
        if self._bodies:
            self._drop(lambda item: (item.stream_id, item.attempt) == (stream_id, attempt))
        self._short.append((stream_id, attempt, Abort()))

    def clear(self) -> None:
        """Nothing is sent any more."""
        self._short, self._short_bytes = [], 0
        self._drop(lambda _: True)

    def take_frame(self) -> list[Entry]:
        """The entries of the next frame, in order; empty when nothing is left."""
        entries, size = self._take_short()
        while self._bodies and not self._short and size < MAX_FRAME_PAYLOAD_BYTES:
            item = self._bodies.popleft()
            message, num_bytes = item.take()
            entries.append((item.stream_id, item.attempt, message))
            size += num_bytes
            if item.body:
                self._bodies.append(item)
            elif item.note_gone is not None:
                item.note_gone()
        return entries

    def _drop(self, is_unwanted: Callable[[_Remainder], bool]) -> None:
        """Forgets what nobody wants any more of what is left."""
        before, self._bodies = self._bodies, deque[_Remainder]()
        for item in before:
            if not is_unwanted(item):
                self._bodies.append(item)
            elif item.note_gone is not None:
                item.note_gone()

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
