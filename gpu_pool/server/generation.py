"""One request on its way through a node: from a decoded request to its events.

Owns the order of events: one `Accepted`, any number of `Delta`s, then `Finished` or `Failed`,
whatever goes wrong. Must not know connections. Read next: `served_model`, `wire.stream`.
"""

import asyncio
import traceback
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from contracts.errors import ErrorReport, InvariantBroken, ServiceError, to_error_report
from contracts.grant import Grant
from contracts.inference import (
    Accepted,
    Delta,
    Failed,
    Finished,
    FinishReason,
    GenerateRequest,
    GenerationEvent,
    Usage,
)
from gpu_pool.engine.messages import SequenceFinished
from gpu_pool.plan import SequenceId
from gpu_pool.server.engine_client import EngineClient
from gpu_pool.server.prepared_sequence import PreparedSequence
from gpu_pool.server.served_model import ServedModel
from gpu_pool.server.text.text_stream import Piece, TextStream

_NOTHING: Final = Usage(0, 0, 0)


class Generation:
    """The state of one request. `emit` is called with each event; the last one ends it."""

    __slots__ = (
        "_client",
        "_emit",
        "_is_aborted",
        "_is_over",
        "_num_cached_tokens",
        "_num_prompt_tokens",
        "_sequence_id",
        "_task",
        "_text",
    )

    def __init__(self, emit: Callable[[GenerationEvent], None]) -> None:
        """Nothing happens before `start`."""
        self._emit = emit
        self._task: asyncio.Task[None] | None = None
        self._client: EngineClient | None = None
        self._sequence_id = SequenceId(0)
        self._text: TextStream | None = None
        self._num_prompt_tokens = 0
        self._num_cached_tokens: int | None = None
        self._is_aborted = False
        self._is_over = False

    def start(self, model: ServedModel, request: GenerateRequest, grant: Grant) -> None:
        """Begins: at once when everything is at hand, else in a task of its own."""
        try:
            prepared = model.try_prepare(request, grant)
            if prepared is None:
                self._task = asyncio.create_task(self._prepare(model, request, grant))
            else:
                self._submit(prepared)
        except Exception as error:
            self.fail(_as_service_error(error))

    def abort(self) -> None:
        """Ends early, with an event that says what was consumed."""
        if self._is_over or self._is_aborted:
            return
        if self._client is None:
            self._stop_preparing()
            self._end(Finished(FinishReason.ABORTED, _NOTHING))
        else:
            self._is_aborted = True
            self._client.abort(self._sequence_id)

    def cancel(self) -> None:
        """Ends early without any event: nobody is there to read it."""
        self._is_over = True
        self._stop_preparing()
        if self._client is not None:
            self._client.drop(self._sequence_id)

    def fail(self, error: ServiceError) -> None:
        """Ends with `error`, and with what was consumed."""
        if not self._is_over:
            self.cancel()
            self._emit(self._create_failure(to_error_report(error)))

    def on_started(self, num_cached_tokens: int) -> None:
        """The first computation begins; a later one after a preemption is not told."""
        if self._is_over or self._num_cached_tokens is not None:
            return
        self._num_cached_tokens = num_cached_tokens
        self._emit(Accepted(self._num_prompt_tokens, num_cached_tokens))

    def on_tokens(self, token_ids: Sequence[int]) -> None:
        """Passes on the text that became visible, and ends at a stop string."""
        if self._is_over or self._is_aborted or self._text is None or self._client is None:
            return
        piece = self._text.push(token_ids)
        self._emit_piece(piece)
        if piece.is_stopped:
            self._client.drop(self._sequence_id)
            self._end(Finished(FinishReason.STOP, self._count(self._text.num_tokens)))

    def on_finished(self, finished: SequenceFinished) -> None:
        """The engine's last word."""
        if self._is_over:
            return
        if finished.error is not None:
            usage = self._find_usage(finished.num_completion_tokens)
            self._end(Failed(finished.error, usage))
            return
        reason = finished.reason or FinishReason.STOP
        if reason is not FinishReason.ABORTED and not self._is_aborted and self._text is not None:
            piece = self._text.finish()
            self._emit_piece(piece)
            reason = FinishReason.STOP if piece.is_stopped else reason
        self._end(Finished(reason, self._count(finished.num_completion_tokens)))

    def on_broken(self, error: ServiceError) -> None:
        """The core is gone, and with it the word on tokens that were not passed on."""
        if not self._is_over:
            self._end(self._create_failure(to_error_report(error)))

    async def _prepare(self, model: ServedModel, request: GenerateRequest, grant: Grant) -> None:
        """The part of `start` that takes time."""
        try:
            prepared = await model.prepare(request, grant)
            self._task = None
            self._submit(prepared)
        except Exception as error:
            self._task = None
            self.fail(_as_service_error(error))

    def _submit(self, prepared: PreparedSequence) -> None:
        """Hands the sequence to the core; the prompt is not kept."""
        self._text = prepared.text
        self._num_prompt_tokens = prepared.num_prompt_tokens
        self._sequence_id = prepared.client.add(prepared.create, self)
        self._client = prepared.client

    def _stop_preparing(self) -> None:
        """Ends the task that waits or tokenises, if there is one."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def _emit_piece(self, piece: Piece) -> None:
        """An event for `piece`, unless it is empty."""
        if piece.text or piece.token_ids:
            self._emit(Delta(piece.text, piece.token_ids))

    def _end(self, event: Finished | Failed) -> None:
        """The last event."""
        self._is_over = True
        self._emit(event)

    def _create_failure(self, error: ErrorReport) -> Failed:
        """The end in `error` of a sequence whose count nobody else has: the tokens seen so far."""
        return Failed(error, self._find_usage(self._text.num_tokens if self._text else 0))

    def _count(self, num_completion_tokens: int) -> Usage:
        """What was consumed; a sequence that never started has consumed nothing."""
        return self._find_usage(num_completion_tokens) or _NOTHING

    def _find_usage(self, num_completion_tokens: int) -> Usage | None:
        """What was consumed, None when the sequence never started."""
        if self._num_cached_tokens is None:
            return None
        return Usage(self._num_prompt_tokens, self._num_cached_tokens, num_completion_tokens)


def _as_service_error(error: Exception) -> ServiceError:
    """`error` if clients may see it; else it is logged, and they learn that it is our defect."""
    if isinstance(error, ServiceError):
        return error
    # Without the error's own message, which could quote a prompt.
    structlog.get_logger().error(
        "a request failed",
        error=type(error).__name__,
        frames=traceback.format_tb(error.__traceback__),
    )
    return InvariantBroken("The node failed to prepare this request.")
