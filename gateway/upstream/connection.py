"""One life of the wire to a node: frames out in batches, events in to their streams.

Owns the streams that are open on it. The reader never waits for a client and the writer puts all
that is pending into one frame. An answer to an earlier attempt is dropped; a malformed entry ends
its own stream only. When the socket ends, every stream fails; so does it when a node says more of
itself than is read. Read next: `gateway.upstream.node_stream`, `gateway.upstream.outbox`.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol, cast, get_args

import aiohttp
import msgspec
import structlog

from contracts.errors import (
    DeadlineExceeded,
    NodeUnreachable,
    PoolSaturated,
    ServiceError,
    StreamBroken,
)
from contracts.grant import Grant, GrantSealer
from contracts.ids import NodeId
from contracts.inference import Delta, GenerationEvent
from contracts.kv_transfer import (
    KvImport,
    KvRelease,
    KvStop,
    KvTicket,
    TransferEvent,
    seal_ticket,
)
from contracts.pair_key import seal_pair_key
from contracts.placement import PlacementPlan
from contracts.wire import (
    CONNECTION_STREAM,
    AdapterWanted,
    Credit,
    FromNodeEntry,
    Hello,
    NewKey,
    Place,
    decode_frame,
    decode_frame_from_node,
    decode_from_node,
    encode_frame,
)
from gateway.sources import Sources
from gateway.upstream.node_stream import CREDIT_WINDOW, NodeStream
from gateway.upstream.node_word import NodeWord, ReportExcess, WordListener
from gateway.upstream.outbox import Outbox

log = structlog.get_logger(__name__)
KEY_ANSWER_S: Final = 10.0
"""How long a node may take to keep a new key."""
ABORT_ANSWER_S: Final = 5.0
"""How long a node may take to say what an aborted request has consumed."""
_ANSWERS: Final = frozenset[object](get_args(GenerationEvent))
_TRANSFERS: Final = frozenset[object](get_args(TransferEvent))
"""Looked up by type: to ask for an instance of a union is slower by far, and each event asks."""
_STANDSTILL_S: Final = 1.0
"""Between two sweeps, of which there are several a second."""


@dataclass(frozen=True, slots=True)
class StreamBounds:
    """How long streams may wait. Units: seconds."""

    queue_deadline_s: float
    request_deadline_s: float
    silence_s: float
    """A connection without any frame for so long is dead, or might as well be."""


class ConnectionListener(WordListener, Protocol):
    """Who looks after a connection from outside."""

    def on_lost(self, connection: "NodeConnection") -> None:
        """The connection is over; its streams fail next, and must find no way back to it."""
        ...


class NodeConnection:
    """A proven connection; made by `gateway.upstream.link` after the handshake."""

    def __init__(
        self,
        node_id: NodeId,
        socket: aiohttp.ClientWebSocketResponse,
        connection_key: bytes,
        bounds: StreamBounds,
        listener: ConnectionListener,
        sources: Sources,
    ) -> None:
        """`listener` hears the reports as they come, and of the end before any stream does."""
        self._node_id = node_id
        self._socket = socket
        self._connection_key = connection_key
        self._sealer = GrantSealer(connection_key)
        self._bounds = bounds
        self._listener = listener
        self._sources = sources
        self._outbox = Outbox()
        self._streams: dict[int, NodeStream] = {}
        self._noted: list[Callable[[], None]] = []
        """Who is to be told of this frame's events."""
        self.note: Final = self._noted.append
        self._num_opened = 0
        self._writer_waiter: asyncio.Future[None] | None = None
        self._reader: asyncio.Task[None] | None = None
        self._heard_s = self._swept_s = sources.monotonic_s()
        self._word = NodeWord(node_id, listener, self._heard_s)
        self._is_closed = False

    @property
    def num_streams(self) -> int:
        """Streams that are open now."""
        return len(self._streams)

    def open(self, grant: Grant, body: bytes, ticket: KvTicket | None = None) -> NodeStream:
        """Starts a stream under `grant` with the encoded request `body`; with `ticket`, for one
        half of a generation.
        """
        self._num_opened += 1
        now_s = self._sources.monotonic_s()
        stream = NodeStream(self, self._node_id, self._num_opened, grant.attempt, now_s)
        left_s = grant.deadline_unix_ms / 1000 - self._sources.unix_s()
        stream.ends_s = now_s + min(max(left_s, 0.0), self._bounds.request_deadline_s)
        if self._is_closed:
            stream.fail(StreamBroken("The connection to the node was lost."))
            return stream
        self._streams[stream.stream_id] = stream
        sealed = self._sealer.seal(grant)
        sealed_ticket = b"" if ticket is None else self.seal(ticket)
        stream_id, attempt = stream.stream_id, stream.attempt
        self._outbox.open(stream_id, attempt, sealed, CREDIT_WINDOW, body, sealed_ticket)
        self._wake_writer()
        return stream

    def send_abort(self, stream: NodeStream) -> None:
        """Tells the node to end `stream`, whose last event is then awaited for a short while."""
        stream.since_s = self._sources.monotonic_s()
        self._outbox.abort(stream.stream_id, stream.attempt)
        self._wake_writer()

    def send_credit(self, stream: NodeStream, num_deltas: int) -> None:
        """Lets the node send `num_deltas` more."""
        self._outbox.add(stream.stream_id, stream.attempt, Credit(num_deltas))
        self._wake_writer()

    def send_transfer(self, stream: NodeStream, message: KvImport | KvRelease | KvStop) -> None:
        """Says something of the KV blocks of `stream`."""
        self._outbox.add(stream.stream_id, stream.attempt, message)
        self._wake_writer()

    def send_pieces(
        self, stream: NodeStream, first: int, data: bytes, note_gone: Callable[[], None]
    ) -> None:
        """Sends bytes of the adapter of `stream`, a fragment in turn with others' bodies."""
        if self._is_closed:
            note_gone()
            return
        self._outbox.add_pieces(stream.stream_id, stream.attempt, first, data, note_gone)
        self._wake_writer()

    def seal(self, ticket: KvTicket) -> bytes:
        """The ticket as the node believes it."""
        return seal_ticket(ticket, self._connection_key)

    def place(self, plan: PlacementPlan) -> None:
        """Tells the node where its models should be."""
        self._outbox.add(CONNECTION_STREAM, 0, Place(plan))
        self._wake_writer()

    async def send_key(self, key: bytes, nonce: bytes) -> str:
        """Why the node cannot keep `key` beside the pair's own; empty once it does.

        Raises: `NodeUnreachable`.
        """
        sealed = seal_pair_key(key, self._connection_key, nonce)
        self._outbox.add(CONNECTION_STREAM, 0, NewKey(nonce, sealed))
        self._wake_writer()
        try:
            return await self._word.wait_for_key(KEY_ANSWER_S)
        except TimeoutError:
            raise NodeUnreachable("The node did not say that it keeps the new key.") from None

    def close_if_idle(self) -> None:
        """Ends the connection once no stream is left on it."""
        if not self._streams and self._reader is not None:
            self._reader.cancel()

    def end_streams(self, error: ServiceError) -> int:
        """Ends all streams that nobody has aborted with `error`, and tells the node; how many."""
        ended = [stream for stream in self._streams.values() if not stream.is_aborted]
        for stream in ended:
            self.drop(stream, error)
        return len(ended)

    async def run(self, hello: Hello) -> None:
        """Sends our proof, then carries frames until the socket ends; then fails every stream."""
        self._outbox.add(CONNECTION_STREAM, 0, hello)
        self._reader = asyncio.create_task(self._read())
        writer = asyncio.create_task(self._write())
        try:
            await asyncio.wait((self._reader, writer), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._is_closed = True
            self._listener.on_lost(self)
            self._reader.cancel()
            writer.cancel()
            streams, self._streams = self._streams, {}
            for stream in streams.values():
                stream.fail(StreamBroken("The connection to the node was lost."))
            self._outbox.clear()
            await asyncio.gather(self._reader, writer, return_exceptions=True)
            await self._socket.close()

    def sweep(self) -> None:
        """Ends what has waited too long, a silent connection first; called several times a second.

        A node reports about once a second, so that silence tells more than unanswered pings would.
        Where this process itself stood still, what the node said may not have been read yet.
        """
        now_s = self._sources.monotonic_s()
        if now_s - self._swept_s > _STANDSTILL_S:
            self._heard_s = now_s
        self._swept_s = now_s
        if now_s - self._heard_s > self._bounds.silence_s and self._reader is not None:
            log.warning("node_silent", node_id=self._node_id)
            self._reader.cancel()
        for stream in list(self._streams.values()):
            error = self._find_overdue(stream, now_s)
            if error is not None:
                self.drop(stream, error)

    async def _read(self) -> None:
        """Handles frames until the socket ends or the node breaks the protocol."""
        receive = self._socket.receive
        while True:
            message = await receive()
            self._heard_s = self._sources.monotonic_s()
            if message.type is not aiohttp.WSMsgType.BINARY:
                return
            frame = message.data
            try:
                if self._word.begin(len(frame)):
                    self._take(decode_frame_from_node(frame))
                else:
                    await self._take_large(frame)
            except msgspec.MsgspecError:
                log.error("frame_malformed", node_id=self._node_id)
                return
            except ReportExcess as excess:
                log.error(excess.event, node_id=self._node_id, **excess.bounds)
                return
            self._tell()

    def _tell(self) -> None:
        """Tells all who listen of the frame that was read."""
        if self._noted:
            noted = self._noted.copy()
            self._noted.clear()
            for listener in noted:
                listener()

    async def _take_large(self, frame: bytes) -> None:
        """The same of a frame in which a report may be too large, or many: others have a turn after
        each. Raises: `msgspec.MsgspecError`, `ReportExcess`.
        """
        for entry in decode_frame(frame):
            is_own = entry.stream_id == CONNECTION_STREAM
            if is_own:
                self._word.begin_one(len(entry.message))
            self._take((decode_from_node(entry),))
            if is_own:
                await asyncio.sleep(0)

    def _take(self, entries: Iterable[FromNodeEntry]) -> None:
        """Gives entries to their streams. Raises: `ReportExcess`."""
        streams = self._streams
        for entry in entries:
            stream = streams.get(entry.stream_id)
            event = entry.message
            if type(event) is not Delta or stream is None or stream.attempt != entry.attempt:
                self._receive(entry)
            elif not stream.push_text(event):
                stream.break_off_excess()

    def _receive(self, entry: FromNodeEntry) -> None:
        """Gives one entry to its stream."""
        stream = self._streams.get(entry.stream_id)
        if stream is None or stream.attempt != entry.attempt:
            if entry.stream_id == CONNECTION_STREAM:
                self._word.hear(entry.message, self._heard_s)
            return
        event = entry.message
        if type(event) not in _ANSWERS:
            if type(event) in _TRANSFERS and stream.on_transfer is not None:
                stream.on_transfer(cast("TransferEvent", event))
            elif type(event) is AdapterWanted and stream.feed is not None:
                if not stream.is_aborted:  # it may have asked before it heard of that
                    stream.feed.take(event)
            else:
                self.drop(stream, StreamBroken("The node sent an event that cannot be read."))
            return
        is_within_credit = stream.push(cast("GenerationEvent", event))
        if stream.is_over:
            del self._streams[stream.stream_id]
        elif not is_within_credit:
            stream.break_off_excess()

    def _find_overdue(self, stream: NodeStream, now_s: float) -> ServiceError | None:
        """The error of a stream whose wait is over, None while it may go on: one whose adapter is
        on its way waits for nothing else.
        """
        waited_s = now_s - stream.since_s
        if stream.is_aborted:
            if waited_s > ABORT_ANSWER_S:
                return StreamBroken("The node did not confirm the end of the request.")
        elif not stream.is_accepted and now_s - stream.fed_s > self._bounds.queue_deadline_s:
            return PoolSaturated("No place became free in time, please try again.")
        elif now_s > stream.ends_s + ABORT_ANSWER_S:
            # The node keeps the deadline in the grant itself; this is for one that does not.
            return DeadlineExceeded("The request took longer than it may.")
        return None

    def drop(self, stream: NodeStream, error: ServiceError) -> None:
        """Ends a stream on our side at once and tells the node, whose answer is not awaited."""
        self._streams.pop(stream.stream_id, None)
        stream.fail(error)
        self._outbox.abort(stream.stream_id, stream.attempt)
        self._wake_writer()

    async def _write(self) -> None:
        """Sends what is pending, all of it in one frame if it fits, whenever there is some."""
        try:
            while True:
                while entries := self._outbox.take_frame():
                    await self._socket.send_bytes(encode_frame(entries))
                self._writer_waiter = asyncio.get_running_loop().create_future()
                await self._writer_waiter
        except (aiohttp.ClientError, ConnectionError):
            return  # the end of this task is the end of the connection

    def _wake_writer(self) -> None:
        waiter = self._writer_waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
