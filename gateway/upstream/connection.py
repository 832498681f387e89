"""One life of the wire to a node: frames out in batches, events in to their streams.

Owns the streams that are open on it. The reader never waits for a client and the writer puts all
that is pending into one frame. An answer to an earlier attempt is dropped; a malformed entry ends
its own stream only. When the socket ends, every stream fails.
Read next: `gateway.upstream.node_stream`, `gateway.upstream.outbox`.
"""

import asyncio
from collections.abc import Callable
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
from contracts.fleet import NodeReport
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
    FromNode,
    FromNodeEntry,
    Hello,
    NewKey,
    NewKeyKept,
    Place,
    Report,
    decode_frame_from_node,
    encode_frame,
)
from gateway.sources import Sources
from gateway.upstream.node_stream import CREDIT_WINDOW, NodeStream
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


class ConnectionListener(Protocol):
    """Who looks after a connection from outside."""

    def on_report(self, report: NodeReport) -> None:
        """The node has said how it is."""
        ...

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
        self._key_kept: asyncio.Future[str] | None = None
        """What the node says of a new key, while that is awaited."""
        self._bounds = bounds
        self._listener = listener
        self._sources = sources
        self._outbox = Outbox()
        self._streams: dict[int, NodeStream] = {}
        self._noted: list[NodeStream] = []
        """Streams whose listeners are to be told of this frame's events."""
        self._num_opened = 0
        self._writer_waiter: asyncio.Future[None] | None = None
        self._reader: asyncio.Task[None] | None = None
        self._heard_s = self._swept_s = sources.monotonic_s()
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
        stream = NodeStream(
            self, self._node_id, self._num_opened, grant.attempt, self._sources.monotonic_s()
        )
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
        kept: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._key_kept = kept
        sealed = seal_pair_key(key, self._connection_key, nonce)
        self._outbox.add(CONNECTION_STREAM, 0, NewKey(nonce, sealed))
        self._wake_writer()
        try:
            async with asyncio.timeout(KEY_ANSWER_S):
                return await kept
        except TimeoutError:
            raise NodeUnreachable("The node did not say that it keeps the new key.") from None
        finally:
            self._key_kept = None

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

    def note(self, stream: NodeStream) -> None:
        """Tells the stream's listener when the frame has been read to its end."""
        self._noted.append(stream)

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
            try:
                entries = decode_frame_from_node(message.data)
            except msgspec.MsgspecError:
                log.error("frame_malformed", node_id=self._node_id)
                return
            streams = self._streams
            for entry in entries:
                stream = streams.get(entry.stream_id)
                event = entry.message
                if type(event) is not Delta or stream is None or stream.attempt != entry.attempt:
                    self._receive(entry)
                elif not stream.push_text(event):
                    self.drop(stream, _create_excess())
            if self._noted:
                noted, self._noted = self._noted, []
                for stream in noted:
                    stream.notify()

    def _receive(self, entry: FromNodeEntry) -> None:
        """Gives one entry to its stream."""
        stream = self._streams.get(entry.stream_id)
        if stream is None or stream.attempt != entry.attempt:
            if entry.stream_id == CONNECTION_STREAM:
                self._receive_own(entry.message)
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
            self.drop(stream, _create_excess())

    def _receive_own(self, message: FromNode | None) -> None:
        """Handles a message of the connection itself."""
        if isinstance(message, Report):
            if message.report.node_id == self._node_id:
                self._listener.on_report(message.report)
            else:
                log.error("report_of_another_node", node_id=self._node_id)
        elif isinstance(message, NewKeyKept) and self._key_kept is not None:
            if not self._key_kept.done():
                self._key_kept.set_result(message.refusal)
        else:
            log.error("connection_message_malformed", node_id=self._node_id)

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
        elif waited_s > self._bounds.request_deadline_s + ABORT_ANSWER_S:
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


def _create_excess() -> StreamBroken:
    """The error of a stream whose node does not keep to its credit."""
    return StreamBroken("The node sent more than it was asked for.")
