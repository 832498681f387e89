"""Sends what a connection's streams have to say, everything of one moment in one frame.

An engine step reaches all streams in one go and the writer runs after it, hence one frame per
step. Must not know what messages mean. Read next: `connection`.
"""

import asyncio
from collections.abc import Sequence

from aiohttp import web

from contracts.wire import MAX_FRAME_BYTES, FromNode, encode_frame

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
    """`entries` as one frame, or as several when one would be too large."""
    frame = encode_frame(entries)
    if len(frame) <= MAX_FRAME_BYTES or len(entries) == 1:
        return [frame]
    middle = len(entries) // 2
    return encode_frames(entries[:middle]) + encode_frames(entries[middle:])
