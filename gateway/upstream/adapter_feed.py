"""Adapters' files on their way to nodes: what a stream's node asks for is read and sent in pieces.

Owns what a node may ask, and how much of it is in memory: no stream has more than its window, and
no node more than `MAX_READS` of those read or waiting to be sent, so that files hold up neither
each other nor the answers beside them. Must not know sockets or stores.
Read next: `gateway.adapter_reading`, `gateway.upstream.outbox` (how pieces share the way).
"""

import asyncio
from collections import deque
from typing import Final

import structlog

from contracts.adapters import MAX_ASKED_BYTES, AdapterRef, AdapterWanted
from contracts.errors import InvariantBroken, ServiceError, StreamBroken
from contracts.wire import FRAGMENT_BYTES
from gateway.adapter_reading import AdapterReader
from gateway.sources import Sources
from gateway.upstream.node_stream import NodeStream

log = structlog.get_logger(__name__)
MAX_READS: Final = 4
"""Of one node at once, until what was read is on its way."""
MAX_TIMES: Final = 4
"""How often a node may ask for all of a file on one stream: it may have to begin again."""


class AdapterFeed:
    """One stream's."""

    __slots__ = (
        "_asked_bytes",
        "_left_bytes",
        "_queue",
        "_reader",
        "_ref",
        "_slots",
        "_sources",
        "_stream",
        "_task",
    )

    def __init__(
        self,
        stream: NodeStream,
        ref: AdapterRef,
        reader: AdapterReader,
        slots: asyncio.Semaphore,
        sources: Sources,
    ) -> None:
        """Reads nothing before it is asked; `slots` are those of the stream's node."""
        self._stream = stream
        self._ref = ref
        self._reader = reader
        self._slots = slots
        self._sources = sources
        self._queue: deque[AdapterWanted] = deque()
        self._asked_bytes = 0
        """That are still to be sent."""
        self._left_bytes = MAX_TIMES * max(ref.num_bytes, FRAGMENT_BYTES)
        self._task: asyncio.Task[None] | None = None

    def take(self, wanted: AdapterWanted) -> None:
        """The node asks for bytes; what it may not ask for ends its stream."""
        self._left_bytes -= max(wanted.num_bytes, FRAGMENT_BYTES)
        self._asked_bytes += wanted.num_bytes
        if wanted.first + wanted.num_bytes > self._ref.num_bytes:
            self._break_off("The node asked for more of an adapter than there is.")
        elif self._asked_bytes > MAX_ASKED_BYTES:
            self._break_off("The node asked for more of an adapter at once than it may.")
        elif self._left_bytes < 0:
            self._break_off("The node asked for an adapter too often.")
        else:
            self._queue.append(wanted)
            if self._task is None:
                self._task = asyncio.create_task(self._run())

    def end(self) -> None:
        """The stream is over: nothing is read for it any more. It may be called more than once."""
        task, self._task = self._task, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()
        self._queue.clear()

    def _break_off(self, message: str) -> None:
        """The node does not speak this protocol."""
        self._stream.break_off(StreamBroken(message))

    async def _run(self) -> None:
        """Answers what has been asked, in order."""
        try:
            while self._queue:
                await self._answer(self._queue.popleft())
        except ServiceError as error:
            self._stream.break_off(error, is_ours=True)
        except Exception as error:
            log.exception("adapter_not_read", error=type(error).__name__)
            error = InvariantBroken("The adapter could not be read.")
            self._stream.break_off(error, is_ours=True)
        finally:
            if self._task is asyncio.current_task():
                self._task = None

    async def _answer(self, wanted: AdapterWanted) -> None:
        """Reads what is wanted and hands it over to be sent. Raises: what the reader raises."""
        slot = _Slot(self._slots)
        await slot.take()
        try:
            data = await self._reader.read(self._ref, wanted.first, wanted.num_bytes)
            if len(data) != wanted.num_bytes:
                raise InvariantBroken("The adapter's file is shorter than it should be.")
        except BaseException:
            slot.give_back()
            raise

        def note_sent() -> None:
            self._asked_bytes -= wanted.num_bytes
            self._stream.fed_s = self._sources.monotonic_s()
            slot.give_back()

        self._stream.fed_s = self._sources.monotonic_s()
        self._stream.send_pieces(wanted.first, data, note_sent)


class _Slot:
    """A place among those that read, given back once."""

    __slots__ = ("_is_taken", "_slots")

    def __init__(self, slots: asyncio.Semaphore) -> None:
        """Not taken yet."""
        self._slots = slots
        self._is_taken = False

    async def take(self) -> None:
        """Returns when it is this one's turn."""
        await self._slots.acquire()
        self._is_taken = True

    def give_back(self) -> None:
        """Lets the next one read."""
        if self._is_taken:
            self._is_taken = False
            self._slots.release()
