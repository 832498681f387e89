"""One request whose prompt is computed here for another node.

Owns the order of events: `Accepted`, then `KvExported` as blocks are there, then, when the other
node is done with them, `Finished`; nothing is generated. Must not know text beyond the prompt.
Read next: `arriving_blocks` (the other node's side), `generation` (a whole request).
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from contracts.errors import (
    ErrorReport,
    InvalidRequest,
    ServiceError,
    TransferFailed,
    to_error_report,
)
from contracts.grant import Grant
from contracts.inference import Accepted, Failed, Finished, FinishReason, GenerateRequest, Usage
from contracts.kv_transfer import (
    KvExported,
    KvGaveUp,
    KvImport,
    KvRelease,
    KvStop,
    KvTicket,
    TransferEvent,
)
from contracts.wire import AdapterPiece, StreamEvent
from gpu_pool.engine.messages import AddSequence, KvDeparture, SequenceFinished, TextsEncoded
from gpu_pool.plan import SequenceId, TokenScore
from gpu_pool.server.adapters.piece_line import UNASKED, PieceLine
from gpu_pool.server.defects import as_service_error
from gpu_pool.server.kv_ticket_fit import check_fit, find_lease_end_ms
from gpu_pool.server.prepared_request import PreparedRequest
from gpu_pool.server.served_model import ServedModel

_NOTHING: Final = Usage(0, 0, 0)


class HandOver:
    """The state of one such request; `emit` is called with each event, the last one ends it."""

    def __init__(self, ticket: KvTicket, emit: Callable[[StreamEvent], None]) -> None:
        """Nothing happens before `start`."""
        self._ticket = ticket
        self._lease_ends_ms = find_lease_end_ms(ticket)
        self._emit = emit
        self._line: PieceLine | None = None
        """The way to its adapter's file, where it has one."""
        self._task: asyncio.Task[None] | None = None
        self._prepared: PreparedRequest | None = None
        self._sequence_id = SequenceId(0)
        self._num_cached_tokens: int | None = None
        self._has_exported = False
        self._is_over = False

    def start(self, model: ServedModel, request: GenerateRequest, grant: Grant) -> None:
        """Begins, in a task of its own."""
        if request.adapter is not None:
            self._line = PieceLine(self._emit)
        self._task = asyncio.create_task(self._run(model, request, grant))

    def move_blocks(self, message: KvImport | KvStop | KvRelease, ticket: KvTicket | None) -> None:
        """The other node is done, or wants nothing any more before anything was computed."""
        if self._is_over or not isinstance(message, KvRelease):
            return
        if self._prepared is not None:
            self._prepared.client.release_export(self._sequence_id)
        self._leave()
        self._emit(Finished(FinishReason.LENGTH, self._find_usage() or _NOTHING))

    @property
    def cold_s(self) -> float:
        """How long it has waited for its model to come to the device."""
        return 0.0 if self._prepared is None else self._prepared.cold_s

    def abort(self) -> None:
        """Ends early; blocks of which the gateway has heard stay for as long as a read that has
        begun may take: bytes of others would fail its check, but are not to go there at all.
        """
        if not self._is_over:
            if self._prepared is not None:
                self._prepared.client.release_export(
                    self._sequence_id, may_be_read=self._has_exported
                )
            self._leave()
            self._emit(Finished(FinishReason.ABORTED, self._find_usage() or _NOTHING))

    def cancel(self) -> None:
        """Ends early without any event."""
        if not self._is_over:
            self._leave()

    def take_piece(self, piece: AdapterPiece) -> None:
        """Bytes of its adapter have come. Raises: `InvalidRequest`."""
        if self._line is None:
            raise InvalidRequest(UNASKED)
        self._line.take(piece)

    def fail(self, error: ServiceError) -> None:
        """Ends with `error`, and with what was consumed."""
        self._fail(to_error_report(error))

    # -- what the core says ----------------------------------------------------------------------

    def on_started(self, num_cached_tokens: int) -> None:
        """The prompt is being computed."""
        if not self._is_over and self._num_cached_tokens is None and self._prepared is not None:
            num_prompt_tokens = self._prepared.num_prompt_tokens
            self._num_cached_tokens = min(num_cached_tokens, num_prompt_tokens)
            self._emit(Accepted(num_prompt_tokens, self._num_cached_tokens))

    def on_prompt_scores(self, scores: Sequence[TokenScore]) -> None:
        """The other node's to tell."""

    def on_tokens(self, token_ids: Sequence[int], scores: Sequence[TokenScore]) -> None:
        """The other node draws the first token again, and it is the same."""

    def on_encoded(self, encoded: TextsEncoded) -> None:
        """A core that generates tells none."""

    def on_finished(self, finished: SequenceFinished) -> None:
        """The prompt is computed; its blocks wait for the other node."""
        if finished.error is not None:
            self._fail(finished.error)

    def on_broken(self, error: ServiceError) -> None:
        """The core is gone, and the blocks with it."""
        self.fail(error)

    def on_transfer(self, event: TransferEvent) -> None:
        """Tells the gateway what can be fetched."""
        if self._is_over:
            return
        if isinstance(event, KvExported):
            self._has_exported |= bool(event.runs)
            self._emit(event)
        elif isinstance(event, KvGaveUp):
            self.fail(TransferFailed("The prompt's KV blocks cannot be handed over."))

    # -- parts of a life -------------------------------------------------------------------------

    async def _run(self, model: ServedModel, request: GenerateRequest, grant: Grant) -> None:
        """Prepares the request and hands it to the core."""
        try:
            plain = msgspec.structs.replace(
                request, constraint=None, num_choices=1, further_prompts=()
            )
            self._prepared = prepared = await model.prepare(plain, grant, self._line)
            ready = model.core.ready
            assert ready is not None
            check_fit(self._ticket, ready)
            self._sequence_id = prepared.client.add(self._describe(prepared), self, self)
        except Exception as error:
            self.fail(as_service_error(error))

    def _describe(self, prepared: PreparedRequest) -> Callable[[SequenceId], AddSequence]:
        """What the engine is told: compute, keep the blocks, draw one token to come to an end."""
        create, ticket = prepared.describe(0), self._ticket
        departure = KvDeparture(ticket.first_block, ticket.num_blocks, self._lease_ends_ms)

        def describe(sequence_id: SequenceId) -> AddSequence:
            whole = create(sequence_id)
            sampling = msgspec.structs.replace(
                whole.sampling, max_tokens=whole.num_generated_tokens + 1
            )
            return msgspec.structs.replace(
                whole, sampling=sampling, grammar=None, departure=departure
            )

        return describe

    def _fail(self, error: ErrorReport) -> None:
        """Ends with an error."""
        if not self._is_over:
            self._leave()
            self._emit(Failed(error, self._find_usage()))

    def _leave(self) -> None:
        """Nothing follows; the core need not go on."""
        self._is_over = True
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        if self._prepared is not None:
            self._prepared.client.drop(self._sequence_id)
            self._prepared.client.forget_blocks(self._sequence_id)
            self._prepared.release()

    def _find_usage(self) -> Usage | None:
        """What was consumed; None when nothing has started."""
        if self._num_cached_tokens is None or self._prepared is None:
            return None
        return Usage(self._prepared.num_prompt_tokens, self._num_cached_tokens, 0)
