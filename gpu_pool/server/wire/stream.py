"""One stream of a connection: a body coming in, events going out.

Owns assembly, credit, merging and the deadline; must not know grants or text.
Read next: `gpu_pool.server.request_start` (what makes the events), `connection` (what owns this).
"""

import asyncio
import sys
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
from contracts.wire import MAX_AHEAD, AdapterPiece, StreamEvent
from gpu_pool.server.hosted_model import HostedModel, RunningRequest
from gpu_pool.server.request_start import start_request
from gpu_pool.server.stream_meter import NodeMeter, StreamMeter
from gpu_pool.server.wire.delta_buffer import MAX_DELTA_LOGPROBS, AnyDelta, DeltaBuffer, fits

log = structlog.get_logger(__name__)
_DELTAS: Final = frozenset[object](get_args(AnyDelta))
"""Looked up by type: to ask for an instance of a union is slower by far, and each token asks."""
_ALL: Final = sys.maxsize


class WireStream:
    """The state of one stream. `put` sends an event; the stream is over after the last one."""

    __slots__ = (
        "_body",
        "_credit",
        "_ends",
        "_has_started",
        "_held",
        "_is_streaming",
        "_last",
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
        self._ends: list[ChoiceFinished] = []
        self._last: Finished | None = None
        """Ends that wait for what is held before them."""
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
        self._send_held()

    def abort(self) -> None:
        """Ends with `Finished(aborted)` and what was consumed."""
        self._held.clear()
        self._ends.clear()
        if self._last is not None:
            self._end(Finished(FinishReason.ABORTED, self._last.usage))
        elif self._running is not None:
            self._running.abort()
        else:
            self._on_event(Finished(FinishReason.ABORTED, Usage(0, 0, 0)))

    def fail(self, error: ServiceError) -> None:
        """Ends with `error`."""
        if self._last is not None:  # its reader did not come to the end in time
            self._end(Failed(to_error_report(error), self._last.usage))
        elif self._running is not None:
            self._running.fail(error)
        else:
            self._on_event(Failed(to_error_report(error)))

    def cancel(self) -> None:
        """Ends without any event: nobody is there to read it."""
        self._note_over()
        if self._last is not None:
            return
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
            if self._is_streaming and self._credit > 0 and not self._held and fits(event):
                self._credit -= 1
                self._put(event)
            else:
                self._held.add(event)
                if self._is_streaming and self._credit > 0:  # it was too large to be sent as it is
                    self._send_held()
            return
        if isinstance(event, PromptScored):
            for start in range(0, len(event.logprobs), MAX_DELTA_LOGPROBS):
                piece = event.logprobs[start : start + MAX_DELTA_LOGPROBS]
                self._put(PromptScored(piece, event.choice_index))
        elif isinstance(event, ChoiceFinished):
            self._ends.append(event)
            self._send_held()
        elif isinstance(event, Finished):
            self._last = event
            self._send_held()
        elif isinstance(event, Failed):
            if self._is_streaming:
                self._send(None, MAX_AHEAD)
            self._end(event)
        else:
            self._put(event)

    def _send_held(self) -> None:
        """Sends what was merged as far as the credit goes, and the ends that wait for it: for their
        sake `MAX_AHEAD` deltas more, or all where the answer is given in one piece.
        """
        if self._is_streaming:
            self._send(None, 0)
        most_ahead = MAX_AHEAD if self._is_streaming else _ALL
        while self._ends and self._send(self._ends[0].choice_index, most_ahead):
            self._put(self._ends.pop(0))
        if self._last is not None and not self._ends and self._send(None, most_ahead):
            self._end(self._last)

    def _send(self, choice_index: int | None, most_ahead: int) -> bool:
        """Sends what was merged of one choice or of all, up to so many deltas beyond the credit;
        True when nothing of it is left.
        """
        held = self._held
        while self._credit > -most_ahead:
            delta = held.pop(choice_index)
            if delta is None:
                return True
            self._credit -= 1
            self._put(delta)
        return not held if choice_index is None else choice_index not in held

    def _end(self, last: Finished | Failed) -> None:
        """Sends the last event."""
        self._last = None
        self._held.clear()
        self._ends.clear()
        self._note_over()
        self._put(last)

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
