"""One request for vectors on its way through a node: from a decoded request to its events.

Owns the order of events: `Accepted`, then `Encoded` in few and large pieces once all texts are
done, then `Finished`; or `Failed`. Must not know connections.
Read next: `served_encoder`, `generation` (the same for text).
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from contracts.adapters import AdapterPiece
from contracts.encoding import Encoded, EncodeRequest
from contracts.errors import ErrorReport, InvalidRequest, ServiceError, to_error_report
from contracts.grant import Grant
from contracts.inference import Accepted, Failed, Finished, FinishReason, GenerationEvent, Usage
from contracts.kv_transfer import KvImport, KvRelease, KvStop, KvTicket
from gpu_pool.engine.messages import SequenceFinished, TextsEncoded
from gpu_pool.plan import SequenceId, TokenScore
from gpu_pool.server.adapters.piece_line import UNASKED
from gpu_pool.server.defects import as_service_error
from gpu_pool.server.served_encoder import PreparedTexts, ServedEncoder

_PIECE_BYTES: Final = 256 * 1024
"""Of vectors in one event, so that it fits in a frame with others."""


class Encoding:
    """The state of one request; a listener of its sequence. No event follows the last."""

    __slots__ = (
        "_emit",
        "_is_over",
        "_num_tokens",
        "_prepared",
        "_sequence_id",
        "_task",
        "_vectors",
    )

    def __init__(self, emit: Callable[[GenerationEvent], None]) -> None:
        """Nothing happens before `start`."""
        self._emit = emit
        self._task: asyncio.Task[None] | None = None
        self._prepared: PreparedTexts | None = None
        self._sequence_id = SequenceId(0)
        self._vectors: dict[int, bytes] = {}
        self._num_tokens = 0
        """Of the texts that have been encoded."""
        self._is_over = False

    def start(self, model: ServedEncoder, request: EncodeRequest, grant: Grant) -> None:
        """Begins: at once when everything is at hand, else in a task of its own."""
        try:
            prepared = model.try_prepare(request, grant)
            if prepared is None:
                self._task = asyncio.create_task(self._prepare(model, request, grant))
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
        if not self._is_over:
            self.cancel()
            self._emit(Finished(FinishReason.ABORTED, Usage(self._num_tokens, 0, 0)))

    def cancel(self) -> None:
        """Ends early without any event: nobody is there to read it."""
        self._is_over = True
        task, self._task = self._task, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()
        if self._prepared is not None:
            self._prepared.client.drop(self._sequence_id)

    def move_blocks(self, message: KvImport | KvStop | KvRelease, ticket: KvTicket | None) -> None:
        """Vectors have no KV blocks."""

    def take_piece(self, piece: AdapterPiece) -> None:
        """Raises `InvalidRequest`: vectors are computed without adapters."""
        raise InvalidRequest(UNASKED)

    def fail(self, error: ServiceError) -> None:
        """Ends with `error`, and with what was consumed."""
        self._fail(to_error_report(error))

    # -- what the engine says --------------------------------------------------------------------

    def on_started(self, num_cached_tokens: int) -> None:
        """The first texts are being encoded; nothing of them is ever cached."""
        if not self._is_over and self._prepared is not None:
            self._emit(Accepted(self._prepared.num_tokens, num_cached_tokens))

    def on_prompt_scores(self, scores: Sequence[TokenScore]) -> None:
        """An encoder's core tells none."""

    def on_tokens(self, token_ids: Sequence[int], scores: Sequence[TokenScore]) -> None:
        """An encoder's core tells none."""

    def on_encoded(self, encoded: TextsEncoded) -> None:
        """Keeps vectors until all are there: the answer comes in one piece."""
        if self._is_over or self._prepared is None:
            return
        for index, vector in zip(encoded.indices, encoded.vectors, strict=True):
            self._vectors[index] = vector
            self._num_tokens += len(self._prepared.texts[index].token_ids)

    def on_finished(self, finished: SequenceFinished) -> None:
        """The engine's last word."""
        if self._is_over:
            return
        if finished.error is not None:
            self._fail(finished.error)
            return
        for piece in _divide(sorted(self._vectors.items())):
            self._emit(piece)
        self._is_over = True
        self._emit(Finished(finished.reason or FinishReason.STOP, Usage(self._num_tokens, 0, 0)))

    def on_broken(self, error: ServiceError) -> None:
        """The core is gone, and what it had encoded with it."""
        if not self._is_over:
            self._fail(to_error_report(error))

    # -- before the first event ------------------------------------------------------------------

    async def _prepare(self, model: ServedEncoder, request: EncodeRequest, grant: Grant) -> None:
        """The part of `start` that takes time."""
        try:
            self._submit(await model.prepare(request, grant))
        except Exception as error:
            self.fail(as_service_error(error))

    def _submit(self, prepared: PreparedTexts) -> None:
        """Hands the texts to the core. Raises: `ServiceError`."""
        self._sequence_id = prepared.client.add(prepared.describe, self)
        self._prepared = prepared

    def _fail(self, error: ErrorReport) -> None:
        """The last event."""
        if self._is_over:
            return
        has_begun = self._num_tokens > 0
        self.cancel()
        self._emit(Failed(error, Usage(self._num_tokens, 0, 0) if has_begun else None))


def _divide(vectors: Sequence[tuple[int, bytes]]) -> list[Encoded]:
    """Events of at most `_PIECE_BYTES` each, or of one vector."""
    pieces: list[Encoded] = []
    indices: list[int] = []
    held: list[bytes] = []
    num_bytes = 0
    for index, vector in vectors:
        if held and num_bytes + len(vector) > _PIECE_BYTES:
            pieces.append(Encoded(tuple(indices), tuple(held)))
            indices, held, num_bytes = [], [], 0
        indices.append(index)
        held.append(vector)
        num_bytes += len(vector)
    return [*pieces, Encoded(tuple(indices), tuple(held))]
