"""One gateway's connection: takes frames apart and hands each message to its stream.

Owns the streams and their number, size and pairing with grants; must not know text or engines.
A malformed message ends its stream, a malformed frame ends the connection, and the end of the
connection ends all of its streams. Read next: `stream`, `grant_gate`, `frame_writer`.
"""

from collections.abc import Callable, Iterable
from typing import Final

import structlog
from aiohttp import WebSocketError, WSMsgType, web

from contracts.codec import decode_request
from contracts.errors import (
    Forbidden,
    InvalidRequest,
    PayloadTooLarge,
    PoolSaturated,
    ServiceError,
    UnknownModel,
    to_error_report,
)
from contracts.fleet import NodeReport
from contracts.inference import Accepted, Failed, Finished
from contracts.placement import PlacementPlan
from contracts.wire import (
    CONNECTION_STREAM,
    FRAGMENT_BYTES,
    Abort,
    AdapterPiece,
    Body,
    Credit,
    Entry,
    KvImport,
    KvRelease,
    KvStop,
    NewKey,
    NewKeyKept,
    Open,
    Place,
    Report,
    StreamEvent,
    ToNode,
    decode_frame,
    decode_to_node,
)
from gpu_pool.server.node_status import NodeStatus
from gpu_pool.server.wire.frame_writer import FrameWriter
from gpu_pool.server.wire.grant_gate import GrantGate
from gpu_pool.server.wire.handshake import MALFORMED
from gpu_pool.server.wire.stream import WireStream
from gpu_pool.server.wire.ticket_gate import TicketGate

log = structlog.get_logger(__name__)
MAX_BODY_BYTES: Final = 12 * 1024 * 1024
MAX_STREAMS: Final = 2048
MAX_UNFINISHED_BYTES: Final = 256 * 1024 * 1024
"""Announced bytes of bodies that have not arrived in full, on one connection."""
MAX_CREDIT: Final = 2**31


class ProtocolError(Exception):
    """The peer does not speak this protocol; the connection cannot go on."""


class Connection:
    """An authenticated connection."""

    def __init__(
        self,
        writer: FrameWriter,
        gate: GrantGate,
        tickets: TicketGate,
        status: NodeStatus,
        follow: Callable[[PlacementPlan], None],
        keep_key: Callable[[NewKey], str],
        unix_ms: Callable[[], int],
    ) -> None:
        """Nothing is sent or served before `run`. `follow` does what a plan asks, `keep_key`
        says why a new key cannot be kept.
        """
        self._writer = writer
        self._gate = gate
        self._tickets = tickets
        self._status = status
        self._follow = follow
        self._keep_key = keep_key
        self._unix_ms = unix_ms
        self._streams: dict[int, tuple[int, WireStream]] = {}
        """By stream id: the attempt, which fences earlier ones, and the stream."""

    @property
    def num_streams(self) -> int:
        """Streams that are not over."""
        return len(self._streams)

    async def run(
        self, socket: web.WebSocketResponse, first_entries: Iterable[Entry], report_s: float
    ) -> None:
        """Serves until the socket is closed, and reports as often as the gateway wants.

        Raises: `ProtocolError` when it should be, `ConnectionError` when the way to the gateway is
        lost, both with what was found.
        """
        self._status.subscribe(self._send_report, report_s)
        try:
            self._take(first_entries)
            async for message in socket:
                if message.type is WSMsgType.ERROR:
                    raise explain_error(message.data)
                if message.type is not WSMsgType.BINARY:
                    raise ProtocolError("Frames are binary messages.")
                self._take(_decode_entries(message.data))
        finally:
            self._status.unsubscribe(self._send_report)
            if self._streams:
                log.info("streams have ended with their connection", num_streams=len(self._streams))
            for _, stream in self._streams.values():
                stream.cancel()
            self._streams.clear()

    def _send_report(self, report: NodeReport) -> None:
        """Tells the gateway how the node is."""
        self._writer.put(CONNECTION_STREAM, 0, Report(report))

    def _take(self, entries: Iterable[Entry]) -> None:
        """Hands every entry to its stream, whatever becomes of the others."""
        for entry in entries:
            if entry.stream_id == CONNECTION_STREAM:
                self._take_own(entry)
                continue
            try:
                message = decode_to_node(entry.message)
            except MALFORMED:
                self._refuse(entry, InvalidRequest("A message of this stream is malformed."))
                continue
            try:
                self._handle(entry, message)
            except ServiceError as error:
                self._refuse(entry, error)

    def _take_own(self, entry: Entry) -> None:
        """Follows a plan, unless it is for an earlier life, or keeps a key.

        Raises: `ProtocolError`.
        """
        try:
            message = decode_to_node(entry.message)
        except MALFORMED as error:
            raise ProtocolError("A message on stream 0 is malformed.") from error
        if isinstance(message, NewKey):
            self._writer.put(CONNECTION_STREAM, 0, NewKeyKept(self._keep_key(message)))
            return
        if not isinstance(message, Place):
            raise ProtocolError("Only plans and keys may follow on stream 0.")
        if message.plan.boot_id == self._status.boot_id:
            self._follow(message.plan)

    def _handle(self, entry: Entry, message: ToNode) -> None:
        """Acts on one message. Raises: `ServiceError`, which ends the stream."""
        if isinstance(message, Open):
            self._open(entry, message)
            return
        attempt, stream = self._streams.get(entry.stream_id, (None, None))
        if stream is None or attempt != entry.attempt:
            return  # the stream is over, or this is a late word of an earlier attempt
        match message:
            case Abort():
                stream.abort()
            case Credit(num_deltas=num_deltas):
                stream.add_credit(_check_credit(num_deltas))
            case Body(body=body):
                self._add_body(stream, body)
            case KvImport(sealed_ticket=sealed):
                stream.move_blocks(message, self._tickets.admit(sealed, stream.grant))
            case KvRelease() | KvStop():
                stream.move_blocks(message, None)
            case AdapterPiece():
                stream.take_piece(message)
            case _:
                raise InvalidRequest("This message does not belong on a stream.")

    def _open(self, entry: Entry, message: Open) -> None:
        """Starts a stream. Raises: `ServiceError`."""
        attempt, earlier = self._streams.get(entry.stream_id, (None, None))
        if earlier is not None and attempt is not None:
            if entry.attempt <= attempt:
                raise InvalidRequest("The stream's id is in use.")
            del self._streams[entry.stream_id]
            earlier.cancel()
        grant = self._gate.admit(message.sealed_grant, entry.attempt)
        self._check_room(message)
        credit = _check_credit(message.credit)
        log.debug(
            "a request has come",
            request_id=grant.request_id,
            attempt=grant.attempt,
            account_id=grant.account_id,
        )

        ticket = self._tickets.admit(message.sealed_ticket, grant)
        if ticket is None or ticket.answers:
            self._status.sessions.note(grant.account_id, grant.session)

        def put(event: StreamEvent) -> None:
            self._writer.put(entry.stream_id, entry.attempt, event)
            if type(event) is Accepted:
                self._status.prefixes.note_accepted(grant)
            if type(event) is Finished or type(event) is Failed:
                self._streams.pop(entry.stream_id, None)

        stream = WireStream(grant, message.num_body_bytes, credit, put, self._status.meter, ticket)
        self._streams[entry.stream_id] = (entry.attempt, stream)
        stream.set_deadline((grant.deadline_unix_ms - self._unix_ms()) / 1000)
        self._add_body(stream, message.body)

    def _check_room(self, message: Open) -> None:
        """Refuses streams beyond the limits of a connection. Raises: `ServiceError`."""
        num_body_bytes = message.num_body_bytes
        if self._status.is_draining:
            raise PoolSaturated("This node is about to stop and takes no new requests.")
        if num_body_bytes > MAX_BODY_BYTES:
            raise PayloadTooLarge(f"The request is larger than {MAX_BODY_BYTES} bytes.")
        if num_body_bytes < 1:
            raise InvalidRequest("The request is empty.")
        if len(self._streams) >= MAX_STREAMS:
            raise PoolSaturated(f"This node serves {MAX_STREAMS} streams of this gateway already.")
        if len(message.body) >= num_body_bytes:
            return
        num_unfinished = sum(stream.unfinished_bytes for _, stream in self._streams.values())
        if num_unfinished + num_body_bytes > MAX_UNFINISHED_BYTES:
            raise PoolSaturated("This node is receiving too many large requests.")

    def _add_body(self, stream: WireStream, fragment: bytes) -> None:
        """Takes in a fragment and starts the stream with the last. Raises: `ServiceError`."""
        if len(fragment) > FRAGMENT_BYTES:
            raise InvalidRequest(f"A fragment is larger than {FRAGMENT_BYTES} bytes.")
        body = stream.add_body(fragment)
        if body is None:
            return
        request = decode_request(body)
        if request.model != stream.grant.model:
            raise Forbidden("The grant is for another model than the request names.")
        model = self._status.find_model(request.model)
        if model is None:
            raise UnknownModel(f"This node does not serve {request.model}.")
        stream.start(model, request)

    def _refuse(self, entry: Entry, error: ServiceError) -> None:
        """Ends the stream of `entry` with `error`, and no other."""
        attempt, stream = self._streams.get(entry.stream_id, (None, None))
        if stream is not None and attempt == entry.attempt:
            stream.fail(error)
        else:
            failure = Failed(to_error_report(error))
            self._writer.put(entry.stream_id, entry.attempt, failure)


def explain_error(error: Exception) -> Exception:
    """What the end of a socket is to us that is no message of the peer, but aiohttp's finding."""
    if isinstance(error, WebSocketError):
        return ProtocolError(f"What came is no WebSocket frame that is taken: {error}.")
    if isinstance(error, TimeoutError):
        return ConnectionError("It answers no pings: it stands still, or cannot be reached.")
    return ConnectionError(f"{type(error).__name__}: {error}")


def _decode_entries(frame: bytes) -> list[Entry]:
    """The entries of a frame. Raises: `ProtocolError`."""
    try:
        return decode_frame(frame)
    except MALFORMED as error:
        raise ProtocolError("A frame is malformed.") from error


def _check_credit(num_deltas: int) -> int:
    """`num_deltas` if it is a sensible amount. Raises: `InvalidRequest`."""
    if not 0 <= num_deltas <= MAX_CREDIT:
        raise InvalidRequest("The credit is out of range.")
    return num_deltas
