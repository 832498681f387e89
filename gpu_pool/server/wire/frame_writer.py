"""Sends what a connection's streams have to say, everything of one moment in one frame.

An engine step reaches all streams in one go and the writer runs after it, hence one frame per
step. No frame is larger than the gateway takes. Must not know what messages mean, save that one
may end a stream. Read next: `connection`.
"""

import asyncio
from collections.abc import Sequence

import structlog
from aiohttp import web

from contracts.errors import InvariantBroken, to_error_report
from contracts.inference import Failed
from contracts.wire import CONNECTION_STREAM, MAX_FRAME_BYTES, FromNode, encode_frame

log = structlog.get_logger(__name__)
Outgoing = tuple[int, int, FromNode]


class FrameWriter:
    """The outgoing side of one connection."""

    def __init__(self, socket: web.WebSocketResponse) -> None:
        """Nothing is sent before `run`."""
        self._socket = socket
        self._entries: list[Outgoing] = []
        self._has_entries = asyncio.Event()

    def put(self, stream_id: int, attempt: int, message: FromNode) -> None:
        """Queues a message; order is kept."""
        self._entries.append((stream_id, attempt, message))
        self._has_entries.set()

    async def run(self) -> None:
        """Sends until cancelled or the connection is lost, which raises `ConnectionError`."""
        while True:
            await self._has_entries.wait()
            self._has_entries.clear()
            entries, self._entries = self._entries, []
            for frame in encode_frames(entries):
                await self._socket.send_bytes(frame)


def encode_frames(entries: Sequence[Outgoing]) -> list[bytes]:
    """`entries` as one frame, or as several when one would be too large.

    What is too large by itself would end the connection, and with it the streams of all others: its
    own stream fails instead.
    """
    frame = encode_frame(entries)
    if len(frame) <= MAX_FRAME_BYTES:
        return [frame]
    if len(entries) == 1:
        return _refuse(entries[0], len(frame))
    middle = len(entries) // 2
    return encode_frames(entries[:middle]) + encode_frames(entries[middle:])


def _refuse(entry: Outgoing, num_bytes: int) -> list[bytes]:
    """What goes in place of an entry that fits in no frame: nothing where it is of no stream."""
    stream_id, attempt, message = entry
    log.error("a message is too large", kind=type(message).__name__, num_bytes=num_bytes)
    if stream_id == CONNECTION_STREAM:
        return []
    error = InvariantBroken("The node has made a part of this answer too large to be sent.")
    return [encode_frame([(stream_id, attempt, Failed(to_error_report(error)))])]
