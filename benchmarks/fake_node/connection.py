"""One connection of a fake node: frames taken apart, answers gathered into frames.

Owns streams and grants of the connection, with the same refusals as the real node's.
Read next: `contracts.wire`, `stream`.
"""

import asyncio
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import msgspec
from aiohttp import WSMsgType, web

from benchmarks.fake_node.settings import FakeNodeSettings
from benchmarks.fake_node.stream import FakeStream
from contracts.codec import decode_request
from contracts.encoding import EncodeRequest
from contracts.errors import (
    AdapterUnsupported,
    DeadlineExceeded,
    Forbidden,
    InvalidRequest,
    PayloadTooLarge,
    ResidencyViolation,
    ServiceError,
    UnknownModel,
    UnsupportedFeature,
    to_error_report,
)
from contracts.grant import Grant, unseal_grant
from contracts.inference import (
    CountTokensRequest,
    Failed,
    Finished,
    GenerateRequest,
    GenerationEvent,
)
from contracts.prefix_keys import KEY_BYTES
from contracts.wire import (
    CONNECTION_STREAM,
    FRAGMENT_BYTES,
    Abort,
    Body,
    Credit,
    Entry,
    FromNode,
    Open,
    ToNode,
    decode_frame,
    decode_to_node,
    encode_frame,
)

MAX_BODY_BYTES: Final = 12 * 1024 * 1024
_MAX_TOLD: Final = 64
MALFORMED: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


@dataclass(frozen=True, slots=True)
class Recent:
    """What has lately been at the node, through any connection; every report names it."""

    sessions: deque[int] = field(default_factory=lambda: deque[int](maxlen=_MAX_TOLD))
    prefixes: deque[bytes] = field(default_factory=lambda: deque[bytes](maxlen=_MAX_TOLD))


class FakeConnection:
    """An authenticated connection."""

    def __init__(
        self,
        settings: FakeNodeSettings,
        socket: web.WebSocketResponse,
        connection_key: bytes,
        recent: Recent,
    ) -> None:
        """Nothing is sent before `write`."""
        self.recent: Final = recent
        self._settings = settings
        self._socket = socket
        self._connection_key = connection_key
        self._streams: dict[int, tuple[int, FakeStream]] = {}
        self._used: set[tuple[str, int]] = set()
        self._outgoing: list[tuple[int, int, FromNode]] = []
        self._has_outgoing = asyncio.Event()

    def put(self, stream_id: int, attempt: int, message: FromNode) -> None:
        """Queues a message for the next frame."""
        self._outgoing.append((stream_id, attempt, message))
        self._has_outgoing.set()

    async def read(self, first_entries: Iterable[Entry]) -> None:
        """Serves until the socket is closed or speaks another language."""
        is_good = self._take(first_entries)
        while is_good:
            message = await self._socket.receive()
            is_good = message.type is WSMsgType.BINARY and self._take_frame(message.data)

    async def write(self) -> None:
        """Sends frames until cancelled."""
        while True:
            await self._has_outgoing.wait()
            self._has_outgoing.clear()
            entries, self._outgoing = self._outgoing, []
            await self._socket.send_bytes(encode_frame(entries))

    async def tick(self) -> None:
        """Makes one event of every stream per tick, until cancelled."""
        tick_s = self._settings.answer.tick_s
        while tick_s:
            await asyncio.sleep(tick_s)
            for _, stream in list(self._streams.values()):
                if stream.is_running:
                    stream.tick()

    def _take_frame(self, frame: bytes) -> bool:
        """False when the frame is malformed."""
        try:
            return self._take(decode_frame(frame))
        except MALFORMED:
            return False

    def _take(self, entries: Iterable[Entry]) -> bool:
        """Hands every entry to its stream; False when one is for the connection."""
        for entry in entries:
            if entry.stream_id == CONNECTION_STREAM:
                return False
            try:
                self._handle(entry, decode_to_node(entry.message))
            except MALFORMED:
                self._refuse(entry, InvalidRequest("A message of this stream is malformed."))
            except ServiceError as error:
                self._refuse(entry, error)
        return True

    def _handle(self, entry: Entry, message: ToNode) -> None:
        """Acts on one message. Raises: `ServiceError`."""
        if isinstance(message, Open):
            self._open(entry, message)
            return
        attempt, stream = self._streams.get(entry.stream_id, (None, None))
        if stream is None or attempt != entry.attempt:
            return
        match message:
            case Abort():
                stream.abort()
            case Credit(num_deltas=num_deltas):
                stream.add_credit(_check_credit(num_deltas))
            case Body(body=body):
                self._add_body(stream, body)
            case _:
                raise InvalidRequest("This message does not belong on a stream.")

    def _open(self, entry: Entry, message: Open) -> None:
        """Starts a stream. Raises: `ServiceError`."""
        earlier, _ = self._streams.get(entry.stream_id, (None, None))
        if earlier is not None and entry.attempt <= earlier:
            raise InvalidRequest("The stream's id is in use.")
        self._streams.pop(entry.stream_id, None)
        grant = self._admit(message.sealed_grant, entry.attempt)
        if grant.session:
            self.recent.sessions.append(grant.session)
        named = grant.prefixes
        self.recent.prefixes.extend(
            named[at : at + KEY_BYTES] for at in range(0, len(named), KEY_BYTES)
        )
        if message.num_body_bytes > MAX_BODY_BYTES:
            raise PayloadTooLarge(f"The request is larger than {MAX_BODY_BYTES} bytes.")
        if message.num_body_bytes < 1:
            raise InvalidRequest("The request is empty.")

        def put(event: GenerationEvent) -> None:
            self.put(entry.stream_id, entry.attempt, event)
            if isinstance(event, Finished | Failed):
                self._streams.pop(entry.stream_id, None)

        credit = _check_credit(message.credit)
        stream = FakeStream(grant, message.num_body_bytes, credit, self._settings.answer, put)
        self._streams[entry.stream_id] = (entry.attempt, stream)
        self._add_body(stream, message.body)

    def _admit(self, sealed_grant: bytes, attempt: int) -> Grant:
        """The grant, used up. Raises: `ServiceError`."""
        grant = unseal_grant(sealed_grant, self._connection_key)
        use = (grant.request_id, grant.attempt)
        if grant.attempt != attempt or use in self._used:
            raise Forbidden("The grant is for another attempt, or has been used.")
        if grant.regions is not None and self._settings.region not in grant.regions:
            raise ResidencyViolation("This node's region may not compute the request.")
        if grant.deadline_unix_ms <= time.time() * 1000:
            raise DeadlineExceeded("The request's deadline has passed.")
        self._used.add(use)
        return grant

    def _add_body(self, stream: FakeStream, fragment: bytes) -> None:
        """Takes in a fragment and starts the stream with the last. Raises: `ServiceError`."""
        if len(fragment) > FRAGMENT_BYTES:
            raise InvalidRequest(f"A fragment is larger than {FRAGMENT_BYTES} bytes.")
        body = stream.add_body(fragment)
        if body is None:
            return
        request = decode_request(body)
        if request.model != stream.grant.model:
            raise Forbidden("The grant is for another model than the request names.")
        if isinstance(request, GenerateRequest) and request.adapter is not None:
            raise AdapterUnsupported("This model takes no LoRA adapters.", param="lora")
        if request.model != self._settings.model:
            raise UnknownModel(f"This node does not serve {request.model}.")
        if isinstance(request, CountTokensRequest):
            stream.count()
        elif isinstance(request, EncodeRequest):
            raise UnsupportedFeature(
                "This model generates text; it gives no vectors.", param="model"
            )
        else:
            stream.start(request)

    def _refuse(self, entry: Entry, error: ServiceError) -> None:
        """Ends the stream of `entry` with `error`, and no other."""
        attempt, _ = self._streams.get(entry.stream_id, (None, None))
        if attempt == entry.attempt:
            del self._streams[entry.stream_id]
        self.put(entry.stream_id, entry.attempt, Failed(to_error_report(error)))


def _check_credit(num_deltas: int) -> int:
    """`num_deltas` if it is a sensible amount. Raises: `InvalidRequest`."""
    if not 0 <= num_deltas <= 2**31:
        raise InvalidRequest("The credit is out of range.")
    return num_deltas
