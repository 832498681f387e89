"""One attempt of one request at one node: its events in order, and the ways to end it.

The channel between a connection's reader, which must never wait, and the one task that serves the
client. Owns buffering and credit: a node may send `CREDIT_WINDOW` deltas ahead of the client and
merges what comes after, so that a slow reader costs a bounded amount of memory.
Read next: `gateway.upstream.connection`.
"""

import asyncio
from typing import Final, Protocol

from contracts.errors import ServiceError, to_error_report
from contracts.ids import NodeId
from contracts.inference import Accepted, Delta, Failed, GenerationEvent

CREDIT_WINDOW: Final = 64
_MAX_BUFFERED: Final = CREDIT_WINDOW + 4
"""Deltas within the window, and the events that need no credit."""


class StreamOwner(Protocol):
    """What a stream asks of the connection that carries it."""

    def send_abort(self, stream: "NodeStream") -> None:
        """Tells the node to end the stream."""
        ...

    def send_credit(self, stream: "NodeStream", num_deltas: int) -> None:
        """Lets the node send more."""
        ...


class NodeStream:
    """Events of one attempt, taken by one task; pushed by the connection."""

    __slots__ = (
        "_events",
        "_num_taken",
        "_owner",
        "_waiter",
        "_waits_for_end",
        "attempt",
        "is_aborted",
        "is_accepted",
        "is_over",
        "node_id",
        "since_s",
        "stream_id",
    )

    def __init__(
        self, owner: StreamOwner, node_id: NodeId, stream_id: int, attempt: int, now_s: float
    ) -> None:
        """A stream that was just opened at `now_s` (monotonic)."""
        self.node_id = node_id
        self.stream_id = stream_id
        self.attempt = attempt
        self.is_accepted = False
        self.is_aborted = False
        self.is_over = False
        self.since_s = now_s
        """When the stream was opened, or else aborted: the start of the wait that is bounded."""
        self._owner = owner
        self._events: list[GenerationEvent] = []
        self._waiter: asyncio.Future[None] | None = None
        self._waits_for_end = False
        # Accepted needs no credit, so that the first event taken does not count.
        self._num_taken = -1

    async def take(self) -> list[GenerationEvent]:
        """All events since the last call, at least one; the last of all is Finished or Failed."""
        if not self._events:
            await self._create_waiter()
        events = self._events
        self._events = []
        self._num_taken += len(events)
        if self._num_taken >= CREDIT_WINDOW // 2 and not self.is_over:
            self._owner.send_credit(self, self._num_taken)
            self._num_taken = 0
        return events

    async def take_all(self) -> list[GenerationEvent]:
        """Every event once the stream is over, for answers that are given in one piece."""
        if not self.is_over:
            self._waits_for_end = True
            await self._create_waiter()
        return self._events

    def push(self, event: GenerationEvent) -> bool:
        """Adds an event and wakes the task that waits for it. Called by the connection only.

        False when the node has sent more than its credit allows.
        """
        events = self._events
        events.append(event)
        kind = type(event)
        if kind is Accepted:
            self.is_accepted = True
        elif kind is not Delta:
            self.is_over = True
        waiter = self._waiter
        if waiter is not None and (self.is_over or not self._waits_for_end):
            self._waiter = None
            if not waiter.done():  # done means that the task is being cancelled
                waiter.set_result(None)
        return len(events) <= _MAX_BUFFERED

    def fail(self, error: ServiceError) -> None:
        """Ends the stream with an error of our own, unless it is over. Called by the connection."""
        if not self.is_over:
            self.push(Failed(to_error_report(error)))

    def abort(self) -> None:
        """Asks the node to end the stream; it answers with what was consumed. Idempotent."""
        if not self.is_over and not self.is_aborted:
            self.is_aborted = True
            self._owner.send_abort(self)

    def _create_waiter(self) -> asyncio.Future[None]:
        """Done when `push` finds something worth waking for."""
        self._waiter = waiter = asyncio.get_running_loop().create_future()
        return waiter
