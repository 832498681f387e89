"""One request on its way to an engine of others and back.

Owns its life: one `Accepted`, then what the engine has to say, then `Finished` or `Failed`,
whatever goes wrong; a request that ends early closes its connection at once, which is how engines
learn of it. Must not know the node's connections. Read next: `upstream_model`, `answer_reader`.
"""

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from contracts.errors import (
    InvalidRequest,
    NodeUnreachable,
    ServiceError,
    StreamBroken,
    to_error_report,
)
from contracts.grant import Grant
from contracts.inference import (
    CountTokensRequest,
    Delta,
    Failed,
    Finished,
    FinishReason,
    GenerateRequest,
    ReasoningDelta,
    TokensCounted,
    ToolCallDelta,
    Usage,
)
from contracts.kv_transfer import KvImport, KvRelease, KvStop, KvTicket
from contracts.wire import AdapterPiece, StreamEvent
from gpu_pool.server.adapters.piece_line import UNASKED
from gpu_pool.server.defects import as_service_error
from gpu_pool.server.upstream.answer_reader import AnswerReader
from gpu_pool.server.upstream.chunk import decode_chunk
from gpu_pool.server.upstream.engine_load import EngineLoad
from gpu_pool.server.upstream.request_body import EngineRequest
from gpu_pool.server.upstream.upstream_model import UpstreamModel

END_PATIENCE_S: Final = 5.0
"""For the engine's count of what was used, once the answer is complete."""
TEMPLATE_TOKENS: Final = 4096
"""That an engine's template may add to a prompt, whose own are at most one for each byte."""
_NOTHING: Final = Usage(0, 0, 0)
_HEAD_BYTES: Final = 1024 * 1024
_TOKEN_BYTES: Final = 4096
"""Of the stream, for each token at most: its event's frame, and alternatives."""
_MOST_BYTES: Final = 256 * 1024 * 1024
_DELTAS: Final = (Delta, ReasoningDelta, ToolCallDelta)


class Relay:
    """The state of one request. `emit` is called with each event; the last one ends it."""

    __slots__ = (
        "_emit",
        "_is_over",
        "_is_taken",
        "_load",
        "_num_answers",
        "_num_begun",
        "_num_queued",
        "_reader",
        "_task",
    )

    def __init__(self, emit: Callable[[StreamEvent], None]) -> None:
        """Nothing happens before `start`."""
        self._emit = emit
        self._reader: AnswerReader | None = None
        self._task: asyncio.Task[None] | None = None
        self._load: EngineLoad | None = None
        """Of the engine in which room is taken."""
        self._num_queued = 0
        """Tokens of the prompt, until the engine has begun."""
        self._num_answers = self._num_begun = 0
        """That are asked for, and those that have begun, which all do together."""
        self._is_taken = False
        """The engine has not refused the request: it computes the prompt."""
        self._is_over = False

    @property
    def cold_s(self) -> float:
        """Engines of others are awake or gone."""
        return 0.0

    def start(
        self, model: UpstreamModel, request: GenerateRequest | CountTokensRequest, grant: Grant
    ) -> None:
        """Begins; what cannot even be sent fails at once."""
        try:
            if isinstance(request, CountTokensRequest):
                path, body = model.prepare_count(request, grant)
                self._send(model, functools.partial(self._count, model, path, body))
                return
            sent = model.prepare(request, grant)
            prefix = f"call_{grant.request_id}_"
            most = min(model.engine.context_window, len(sent.body) + TEMPLATE_TOKENS)
            secrets = sent.salt, *model.link.secrets
            reader = AnswerReader(sent, request.sampling.stop, prefix, most, secrets)
            self._reader, self._num_queued = reader, sent.num_prompt_guess
            self._num_answers = sent.num_choices
            self._send(model, functools.partial(self._answer, model, sent, secrets, reader))
        except Exception as error:
            self.fail(as_service_error(error))

    def abort(self) -> None:
        """Ends early, with an event that says what was consumed: the prompt from the moment on at
        which the engine has taken it up.
        """
        if not self._is_over:
            reader = self._reader
            usage = reader.usage if reader is not None and self._is_taken else _NOTHING
            self.cancel()
            self._emit(Finished(FinishReason.ABORTED, usage))

    def cancel(self) -> None:
        """Ends early without any event: nobody is there to read it."""
        self._is_over = True
        task, self._task = self._task, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    def fail(self, error: ServiceError) -> None:
        """Ends with `error`, and with what was consumed."""
        if not self._is_over:
            usage = self._find_usage()
            self.cancel()
            self._emit(Failed(to_error_report(error), usage))

    def move_blocks(self, message: KvImport | KvStop | KvRelease, ticket: KvTicket | None) -> None:
        """Its KV blocks stay where they are."""

    def take_piece(self, piece: AdapterPiece) -> None:
        """Raises `InvalidRequest`: engines of others get no adapters."""
        raise InvalidRequest(UNASKED)

    # -- parts -----------------------------------------------------------------------------------

    def _send(self, model: UpstreamModel, work: Callable[[], Awaitable[None]]) -> None:
        """Starts `work`. The engine's room is taken here and not in the task, which others that
        came in the same frame would overtake; it is given back however the task ends.
        """
        self._load = model.engine.load
        self._load.note_sent(self._num_queued)
        self._task = asyncio.create_task(self._run(work))
        self._task.add_done_callback(lambda _: self._give_room_back())

    def _give_room_back(self) -> None:
        """The engine is done with the request."""
        load, self._load = self._load, None
        if load is not None:
            load.note_over(self._num_queued, self._num_begun)

    async def _run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Does `work`; what it throws ends the request."""
        try:
            await work()
        except Exception as error:
            self.fail(as_service_error(error))

    async def _count(self, model: UpstreamModel, path: str, body: bytes) -> None:
        """Answers how long the prompt is; nothing is computed."""
        self._emit(TokensCounted(await model.count_tokens(path, body)))
        self._end(Finished(FinishReason.STOP, _NOTHING))

    async def _answer(
        self,
        model: UpstreamModel,
        sent: EngineRequest,
        secrets: tuple[str, ...],
        reader: AnswerReader,
    ) -> None:
        """Sends the request and passes on what comes. Raises: `ServiceError`."""
        began_s = asyncio.get_running_loop().time()
        num_tokens = sent.max_tokens * sent.num_choices
        max_bytes = min(_HEAD_BYTES + _TOKEN_BYTES * num_tokens, _MOST_BYTES)
        try:
            async with model.link.open_events(sent.path, sent.body, secrets, max_bytes) as events:
                self._is_taken = True
                await self._pass_on(events, reader, model.engine.load, began_s)
            if not reader.is_over:
                raise StreamBroken("The model's engine has ended the answer before its end.")
        except NodeUnreachable:
            model.engine.note_trouble()
            raise
        except StreamBroken:
            model.engine.note_doubt()
            if not reader.is_over:  # else it is whole, and only its count is missing
                raise
        self._end(Finished(reader.reason, reader.usage, reader.stop))

    async def _pass_on(
        self,
        events: AsyncIterator[bytes],
        reader: AnswerReader,
        load: EngineLoad,
        began_s: float,
    ) -> None:
        """Passes on what comes of a request that was sent at `began_s`, until the answer is whole
        and counted. Raises: `StreamBroken`.
        """
        loop, end = asyncio.get_running_loop(), asyncio.timeout(None)
        try:
            async with end:
                async for data in events:
                    for event in reader.read(decode_chunk(data)):
                        if isinstance(event, _DELTAS):
                            load.note_token()
                        if not self._is_over:
                            self._emit(event)
                    if self._num_queued:
                        num_prompt, took_s = reader.usage.num_prompt_tokens, loop.time() - began_s
                        self._num_begun = self._num_answers
                        load.note_begun(self._num_queued, num_prompt, took_s, self._num_begun)
                        self._num_queued = 0
                    if reader.is_complete:
                        break
                    if reader.is_over and end.when() is None:
                        end.reschedule(loop.time() + END_PATIENCE_S)
        except TimeoutError:
            if not end.expired():
                raise
        if reader.is_over:
            self._end(Finished(reader.reason, reader.usage, reader.stop))

    def _end(self, event: Finished) -> None:
        """The last event; the engine has said all that is needed."""
        self._give_room_back()
        if not self._is_over:
            self._is_over = True
            self._emit(event)

    def _find_usage(self) -> Usage | None:
        """What was consumed; None when the engine had not begun."""
        reader = self._reader
        return reader.usage if reader is not None and reader.has_begun else None
