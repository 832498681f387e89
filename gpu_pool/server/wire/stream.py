"""One stream of a connection: a body coming in, events going out.

Owns assembly, credit, merging and the deadline; must not know grants or text.
Read next: `gpu_pool.server.request_start` (what makes the events), `connection` (what owns this).
"""

import asyncio
from collections.abc import Callable
from typing import Final, cast, get_args

import structlog

from contracts.errors import DeadlineExceeded, InvalidRequest, ServiceError, to_error_report
from contracts.grant import Grant
from contracts.inference import (
    Accepted,
    ChoiceFinished,
    Failed,
    Finished,
    FinishReason,
    GenerateRequest,
    NodeRequest,
    PromptScored,
    Usage,
)
from contracts.kv_transfer import KvImport, KvRelease, KvStop, KvTicket
from contracts.wire import AdapterPiece, StreamEvent
from gpu_pool.server.hosted_model import HostedModel, RunningRequest
from gpu_pool.server.request_start import start_request
from gpu_pool.server.stream_meter import NodeMeter, StreamMeter
from gpu_pool.server.wire.delta_buffer import MAX_DELTA_LOGPROBS, AnyDelta, DeltaBuffer

log = structlog.get_logger(__name__)
_DELTAS: Final = frozenset[object](get_args(AnyDelta))
"""Looked up by type: to ask for an instance of a union is slower by far, and each token asks."""


class WireStream:
    """The state of one stream. `put` sends an event; the stream is over after the last one."""

    __slots__ = (
        "_body",
        "_credit",
        "_has_started",
        "_held",
        "_is_streaming",
        "_meter",
        "_missing_bytes",
        "_node_meter",
        "_put",
        "_running",
        "_ticket",
        "_timer",
        "_total_bytes",
        "grant",
    )

    def __init__(
        self,
        grant: Grant,
        num_body_bytes: int,
        credit: int,
        put: Callable[[StreamEvent], None],
        node_meter: NodeMeter,
        ticket: KvTicket | None = None,
    ) -> None:
        """`num_body_bytes` is what the gateway announced."""
        self._ticket = ticket
        self._node_meter = node_meter
        self._meter: StreamMeter | None = None
        self.grant = grant
        self._total_bytes = self._missing_bytes = num_body_bytes
        self._credit = credit
        self._put = put
        self._body: list[bytes] = []
        self._running: RunningRequest | None = None
        self._has_started = False
        self._is_streaming = True
        self._held = DeltaBuffer()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def unfinished_bytes(self) -> int:
        """The size of the body while it has not arrived in full."""
        return self._total_bytes if self._missing_bytes else 0

    def set_deadline(self, seconds: float) -> None:
        """Ends the stream with `DeadlineExceeded` when it is not over after `seconds`."""
        self._timer = asyncio.get_running_loop().call_later(max(seconds, 0), self._expire)

    def add_body(self, fragment: bytes) -> bytes | None:
        """The whole body with its last fragment, None before.

        Raises: `InvalidRequest` when there is more than was announced.
        """
        if self._has_started or len(fragment) > self._missing_bytes:
            raise InvalidRequest("The body is longer than was announced.")
        self._missing_bytes -= len(fragment)
        self._body.append(fragment)
        if self._missing_bytes:
            return None
        body, self._body = b"".join(self._body), []
        return body

    def start(self, model: HostedModel, request: NodeRequest) -> None:
        """Begins to serve it; events follow. Raises: `UnsupportedFeature`."""
        self._is_streaming = isinstance(request, GenerateRequest) and request.stream
        self._has_started = True
        trace = self._node_meter.tracer.begin(self.grant, request)
        self._meter = self._node_meter.open(request.model, trace)
        self._running = start_request(model, request, self.grant, self._on_event, self._ticket)

    def move_blocks(self, message: KvImport | KvStop | KvRelease, ticket: KvTicket | None) -> None:
        """What the gateway says of the request's KV blocks."""
        if self._running is not None:
            self._running.move_blocks(message, ticket)
        elif isinstance(message, KvRelease):  # before all of the body is here
            self.abort()

    def take_piece(self, piece: AdapterPiece) -> None:
        """Bytes of the request's adapter have come. Raises: `InvalidRequest`."""
        if self._running is None:
            raise InvalidRequest("A piece of an adapter came before the request.")
        self._running.take_piece(piece)

    def add_credit(self, num_deltas: int) -> None:
        """Lets more deltas out, first of all what was merged meanwhile."""
        self._credit += num_deltas
        if self._credit > 0 and self._is_streaming:
            self._send_held()

    def abort(self) -> None:
        """Ends with `Finished(aborted)` and what was consumed."""
        self._held.clear()
        if self._running is not None:
            self._running.abort()
        else:
            self._on_event(Finished(FinishReason.ABORTED, Usage(0, 0, 0)))

    def fail(self, error: ServiceError) -> None:
        """Ends with `error`."""
        if self._running is not None:
            self._running.fail(error)
        else:
            self._on_event(Failed(to_error_report(error)))

    def cancel(self) -> None:
        """Ends without any event: nobody is there to read it."""
        self._note_over()
        if self._meter is not None:
            self._meter.note_lost()
        if self._running is not None:
            self._running.cancel()

    def _on_event(self, event: StreamEvent) -> None:
        """Sends `event`, or merges it into those that wait for credit."""
        if self._meter is not None:
            _note(self._meter, event, self._running)
        if type(event) in _DELTAS:
            event = cast("AnyDelta", event)
            if self._is_streaming and self._credit > 0 and not self._held:
                self._credit -= 1
                self._put(event)
            else:
                self._held.add(event)
            return
        if isinstance(event, PromptScored):
            for start in range(0, len(event.logprobs), MAX_DELTA_LOGPROBS):
                piece = event.logprobs[start : start + MAX_DELTA_LOGPROBS]
                self._put(PromptScored(piece, event.choice_index))
            return
        if isinstance(event, ChoiceFinished):
            self._send_held(event.choice_index)
        if type(event) is Finished or type(event) is Failed:
            self._note_over()
            if self._is_streaming or isinstance(event, Finished):
                self._send_held()
        self._put(event)

    def _send_held(self, choice_index: int | None = None) -> None:
        """Sends what was merged, of one choice or of all."""
        for delta in self._held.take(choice_index):
            self._credit -= 1
            self._put(delta)

    def _expire(self) -> None:
        """The deadline has passed."""
        self.fail(DeadlineExceeded("The request's deadline has passed."))

    def _note_over(self) -> None:
        """The stream is over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        grant = self.grant
        log.debug("a request is over", request_id=grant.request_id, attempt=grant.attempt)


def _note(meter: StreamMeter, event: StreamEvent, running: RunningRequest | None) -> None:
    """Tells the meter what has come."""
    if type(event) in _DELTAS:
        meter.note_tokens()
    elif isinstance(event, Accepted):
        meter.note_accepted(0.0 if running is None else running.cold_s)
    elif isinstance(event, Finished):
        meter.note_end(event.reason, event.usage)
    elif isinstance(event, Failed):
        meter.note_end(event.error.code, event.usage)
