"""How messages reach the core and leave it, and what else wakes it.

Owns the core's end of two zmq ipc pipes, one per direction; the server binds both, in a directory
that only its user may enter, and the core connects. Must not know what messages mean.
Read next: `core`, `gpu_pool.server.engine_client` (the other end).
"""

import contextlib
import math
import os
from typing import Any, Final, Protocol

import zmq

from gpu_pool.engine.messages import FromCore, ToCore, encoder, to_core_decoder

_MAX_QUEUED_MESSAGES: Final = 10_000
"""Messages one pipe holds; a core whose server reads nothing any more stops there."""
_LINGER_MS: Final = 2000
"""How long `close` waits for the last messages to be taken."""


class Transport(Protocol):
    """The core's connection to its server."""

    def receive(self, block: bool, max_wait_s: float | None = None) -> list[ToCore]:
        """All messages that have arrived, in order; if `block`, waits for the first, for a `wake`
        or for `max_wait_s`, whatever comes first.
        """
        ...

    def wake(self) -> None:
        """Ends the wait of `receive`, or the next one's; any thread may call it."""
        ...

    def send(self, message: FromCore) -> None:
        """Sends `message`; order is kept."""
        ...


class ZmqTransport:
    """The real one. Used by one thread, but for `wake`."""

    def __init__(self, to_core_endpoint: str, from_core_endpoint: str) -> None:
        """Connects to endpoints such as `ipc:///run/hearth/to-core`, bound or still to be bound."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._incoming = self._connect(zmq.PULL, to_core_endpoint)
        self._outgoing = self._connect(zmq.PUSH, from_core_endpoint)
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_reader, False)
        os.set_blocking(self._wake_writer, False)
        self._poller = zmq.Poller()
        self._poller.register(self._incoming, zmq.POLLIN)
        self._poller.register(self._wake_reader, zmq.POLLIN)

    def receive(self, block: bool, max_wait_s: float | None = None) -> list[ToCore]:
        """All messages that have arrived, as `Transport` has it.

        Raises: `msgspec.ValidationError` when the server speaks another version.
        """
        if block:
            wait_ms = None if max_wait_s is None else max(0, math.ceil(max_wait_s * 1000))
            if any(source == self._wake_reader for source, _ in self._poller.poll(wait_ms)):
                self._forget_wakes()
        frames: list[bytes] = []
        while self._incoming.poll(0):
            frames.append(self._incoming.recv())
        return [to_core_decoder.decode(frame) for frame in frames]

    def wake(self) -> None:
        """Ends the wait of `receive`, or the next one's; any thread may call it."""
        with contextlib.suppress(BlockingIOError):  # full of wakes: one is enough
            os.write(self._wake_writer, b"\0")

    def send(self, message: FromCore) -> None:
        """Sends `message`; waits only when the server is `_MAX_QUEUED_MESSAGES` behind."""
        self._outgoing.send(encoder.encode(message))

    def close(self) -> None:
        """Waits shortly for what was sent to be taken, then closes both pipes."""
        self._incoming.close(linger=0)
        self._outgoing.close(linger=_LINGER_MS)
        self._context.term()
        os.close(self._wake_reader)
        os.close(self._wake_writer)

    def _forget_wakes(self) -> None:
        """Empties the pipe."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake_reader, 4096):
                pass

    def _connect(self, kind: int, endpoint: str) -> Any:
        """A socket of `kind`, connected to `endpoint`."""
        socket = self._context.socket(kind)
        socket.set_hwm(_MAX_QUEUED_MESSAGES)
        socket.connect(endpoint)
        return socket
