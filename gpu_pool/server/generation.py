"""One request on its way through a node: from a decoded request to its events.

Owns the order of events: one `Accepted`, then what its choices have to say, then `Finished` or
`Failed`, whatever goes wrong. The first choice of a prompt computes it; the others start when it is
in the prefix cache. Must not know connections. Read next: `choice`, `served_model`, `wire.stream`.
"""

import asyncio
import functools
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

import structlog

from contracts.errors import (
    ErrorReport,
    InvalidRequest,
    ServiceError,
    TransferFailed,
    to_error_report,
)
from contracts.grant import Grant
from contracts.inference import (
    Accepted,
    ChoiceFinished,
    CountTokensRequest,
    Failed,
    Finished,
    FinishReason,
    GenerateRequest,
    GenerationEvent,
    TokensCounted,
    Usage,
)
from contracts.kv_transfer import KvImport, KvRelease, KvStop, KvTicket
from contracts.wire import AdapterPiece, StreamEvent
from gpu_pool.server.adapters.piece_line import UNASKED, PieceLine
from gpu_pool.server.arriving_blocks import ArrivingBlocks
from gpu_pool.server.choice import Choice
from gpu_pool.server.defects import as_service_error
from gpu_pool.server.kv_ticket_fit import check_fit
from gpu_pool.server.prepared_request import PreparedRequest
from gpu_pool.server.served_model import ServedModel

log = structlog.get_logger(__name__)
_NOTHING: Final = Usage(0, 0, 0)


class Generation:
    """The state of one request. `emit` is called with each event; the last one ends it."""

    __slots__ = (
        "_arriving",
        "_cached",
        "_choices",
        "_emit",
        "_is_aborted",
        "_is_over",
        "_line",
        "_num_over",
        "_parts",
        "_prepared",
        "_task",
        "_ticket",
        "_unstarted",
    )

    def __init__(self, emit: Callable[[StreamEvent], None], ticket: KvTicket | None = None) -> None:
        """Nothing happens before `start`. With a `ticket` KV blocks come from another node."""
        self._emit = emit
        self._ticket = ticket
        self._arriving = None if ticket is None else ArrivingBlocks(ticket, emit)
        self._line: PieceLine | None = None
        """The way to its adapter's file, where it has one."""
        self._task: asyncio.Task[None] | None = None
        self._prepared: PreparedRequest | None = None
        self._parts: tuple[PreparedRequest, ...] = ()
        """One for each prompt."""
        self._unstarted: deque[PreparedRequest] = deque()
        """Those that wait for another one to be answered."""
        self._choices: list[Choice] = []
        """Those that were handed to the core."""
        self._num_over = 0
        self._cached: dict[int, int] = {}
        """The cached tokens of each prompt that is being computed, by its first choice."""
        self._is_aborted = False
        self._is_over = False

    def start(
        self, model: ServedModel, request: GenerateRequest | CountTokensRequest, grant: Grant
    ) -> None:
        """Begins: at once when everything is at hand, else in a task of its own."""
        try:
            if isinstance(request, CountTokensRequest):
                self._run(functools.partial(self._count, model, request, grant))
                return
            if request.adapter is not None:
                self._line = PieceLine(self._emit)
            prepared = model.try_prepare(request, grant)
            if prepared is None:
                self._run(functools.partial(self._prepare, model, request, grant))
            else:
                self._submit(prepared)
        except Exception as error:
            self.fail(as_service_error(error))

    @property
    def cold_s(self) -> float:
        """How long it has waited for its model to come to the device."""
        return 0.0 if self._prepared is None else self._prepared.cold_s

    def abort(self) -> None:
        """Ends early, with an event that says what was consumed."""
        if self._is_over or self._is_aborted:
            return
        if not self._choices:
            self._stop_preparing()
            self._end(Finished(FinishReason.ABORTED, _NOTHING))
            return
        self._is_aborted = True
        self._unstarted.clear()
        for choice in self._choices:
            choice.abort()

    def cancel(self) -> None:
        """Ends early without any event: nobody is there to read it."""
        self._is_over = True
        if self._arriving is not None:
            self._arriving.end()
        self._stop_preparing()
        for choice in self._choices:
            choice.drop()
        self._release()

    def move_blocks(self, message: KvImport | KvStop | KvRelease, ticket: KvTicket | None) -> None:
        """What the gateway says of blocks that come from another node."""
        if self._arriving is not None:
            self._arriving.take(message, ticket)

    def take_piece(self, piece: AdapterPiece) -> None:
        """Bytes of its adapter have come. Raises: `InvalidRequest`."""
        if self._line is None:
            raise InvalidRequest(UNASKED)
        self._line.take(piece)

    def fail(self, error: ServiceError) -> None:
        """Ends with `error`, and with what was consumed."""
        self.on_choice_failed(to_error_report(error))

    # -- what the choices say --------------------------------------------------------------------

    def emit(self, event: GenerationEvent) -> None:
        """Passes on an event of a choice."""
        if not self._is_over and not self._is_aborted:
            self._emit(event)

    def on_choice_started(self, index: int, num_cached_tokens: int) -> None:
        """The first one of a prompt speaks for all of it, and that of the first for the request."""
        part = self._find_part(index)
        if self._is_over or part.first_choice in self._cached:
            return
        # Of a resumed answer, tokens behind the prompt may be cached as well.
        num_cached = min(num_cached_tokens, part.num_prompt_tokens)
        is_first = not self._cached
        self._cached[part.first_choice] = num_cached
        if is_first:
            num_prompt_tokens = sum(one.num_prompt_tokens for one in self._parts)
            self._emit(Accepted(num_prompt_tokens, num_cached))

    def on_choice_computed(self, index: int) -> None:
        """Starts the other choices of the prompt, which find it in the cache now."""
        part = self._find_part(index)
        if not part.is_first(index):
            return
        for offset in range(1, part.request.num_choices):
            self._try(functools.partial(self._start_choice, index + offset, part))

    def on_choice_over(self, index: int, reason: FinishReason, stop: str | None) -> None:
        """Ends the request with its last choice."""
        if self._is_over or self._prepared is None:
            return
        self._num_over += 1
        num_answers = self._prepared.request.num_answers
        if num_answers > 1 and not self._is_aborted:
            self._emit(ChoiceFinished(index, reason))
        if self._num_over == (len(self._choices) if self._is_aborted else num_answers):
            reason = FinishReason.ABORTED if self._is_aborted else reason
            stop = stop if num_answers == 1 else None
            self._end(Finished(reason, self._find_usage() or _NOTHING, stop))
        elif not self._is_aborted and self._num_over % self._prepared.request.num_choices == 0:
            self._try(self._start_prompt)

    def on_choice_failed(self, error: ErrorReport) -> None:
        """One choice that fails takes the others with it."""
        if self._is_over:
            return
        self.cancel()
        self._emit(Failed(error, self._find_usage()))

    # -- before the first event ------------------------------------------------------------------

    def _run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Does `work` in a task; what it throws ends the request."""

        async def run() -> None:
            try:
                await work()
            except Exception as error:
                self.fail(as_service_error(error))

        self._task = asyncio.create_task(run())

    async def _prepare(self, model: ServedModel, request: GenerateRequest, grant: Grant) -> None:
        """The part of `start` that takes time."""
        self._submit(await model.prepare(request, grant, self._line))

    async def _count(self, model: ServedModel, request: CountTokensRequest, grant: Grant) -> None:
        """Answers how long the prompt is; nothing is computed."""
        self._emit(TokensCounted(await model.count_tokens(request, grant)))
        self._end(Finished(FinishReason.STOP, _NOTHING))

    def _submit(self, prepared: PreparedRequest) -> None:
        """Starts the first choice of each prompt, as many as the core computes at once."""
        self._prepared = prepared = self._await_blocks(prepared)
        self._parts = (prepared, *prepared.further)
        self._unstarted.extend(self._parts)
        most = prepared.ready.max_running if prepared.ready is not None else 0
        for _ in range(max(most // prepared.request.num_choices, 1)):
            self._start_prompt()

    def _start_prompt(self) -> None:
        """Starts the next prompt's first choice, if there is one. Raises: `ServiceError`."""
        if self._unstarted:
            part = self._unstarted.popleft()
            self._start_choice(part.first_choice, part)

    def _await_blocks(self, prepared: PreparedRequest) -> PreparedRequest:
        """The request with the blocks that its ticket is for; without where the core is not the one
        that the gateway knew, as after a restart: it computes the prompt as well.
        """
        ticket, arriving = self._ticket, self._arriving
        if ticket is None or arriving is None or prepared.ready is None:
            return prepared
        try:
            check_fit(ticket, prepared.ready)
        except TransferFailed as error:
            log.info("hand_over_declined", request_id=ticket.request_id, reason=error.message)
            arriving.decline()
            return prepared
        return replace(prepared, arriving=arriving)

    def _try(self, start: Callable[[], None]) -> None:
        """Starts something more, or fails with it."""
        try:
            if not self._is_over:
                start()
        except ServiceError as error:
            self.fail(error)

    def _start_choice(self, index: int, prepared: PreparedRequest) -> None:
        """Hands a choice to the core. Raises: `ServiceError`."""
        choice = Choice(index, prepared, self)
        self._choices.append(choice)
        choice.start()

    def _stop_preparing(self) -> None:
        """Ends the task that waits or tokenises, if there is one and this is not it."""
        task, self._task = self._task, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    def _end(self, event: Finished | Failed) -> None:
        """The last event."""
        self._is_over = True
        if self._arriving is not None:
            self._arriving.end()
        self._release()
        self._emit(event)

    def _find_part(self, index: int) -> PreparedRequest:
        """The prompt that a choice answers."""
        return self._parts[index // self._parts[0].request.num_choices]

    def _release(self) -> None:
        """Nothing of the request is computed any more."""
        if self._prepared is not None:
            self._prepared.release()

    def _find_usage(self) -> Usage | None:
        """What was consumed, prompts that nobody has begun with left out; None when nothing was."""
        if not self._cached:
            return None
        started = [part for part in self._parts if part.first_choice in self._cached]
        return Usage(
            sum(part.num_prompt_tokens for part in started),
            sum(self._cached.values()),
            sum(choice.num_completion_tokens for choice in self._choices),
            sum(choice.num_reasoning_tokens for choice in self._choices),
        )
