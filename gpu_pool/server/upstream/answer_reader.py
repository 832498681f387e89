"""An engine's answer, event by event, as the events of the wire.

Pure: a state machine over chunks. Owns the order of events, what is counted of an answer whose
engine does not count, and what an engine may say at most: it is not believed beyond what the
request could use. Must not know HTTP. Read next: `chunk`, `relay` (the caller).
"""

from collections.abc import Iterator
from typing import Final

from contracts.errors import StreamBroken
from contracts.inference import (
    Accepted,
    ChoiceFinished,
    Delta,
    FinishReason,
    GenerationEvent,
    ReasoningDelta,
    TokenLogprob,
    ToolCallDelta,
    Usage,
)
from gpu_pool.server.upstream.chunk import (
    CallPiece,
    ChoicePiece,
    Chunk,
    EngineUsage,
    ScoredToken,
    Scores,
)
from gpu_pool.server.upstream.engine_errors import to_stream_error
from gpu_pool.server.upstream.request_body import EngineRequest

MAX_CALLS: Final = 256
"""Tool calls of one choice."""
MAX_TOP: Final = 64
"""Alternatives of one token."""
_UNKNOWN_ID: Final = -1
"""The token id of a logprob: engines tell its text."""
_REASONS: Final = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "tool_calls": FinishReason.TOOL_CALLS,
    "function_call": FinishReason.TOOL_CALLS,
    "content_filter": FinishReason.STOP,
}
"""Others (`abort`, `error`) mean that the engine has given the request up."""


class _ChoiceState:
    """How far one choice is."""

    __slots__ = ("calls", "num_tokens", "reason", "stop")

    def __init__(self) -> None:
        """Nothing has come."""
        self.calls: dict[int, int] = {}
        """Our number of each call, by the engine's."""
        self.num_tokens = 0
        self.reason: FinishReason | None = None
        self.stop: str | None = None


class AnswerReader:
    """One answer's state."""

    def __init__(
        self,
        request: EngineRequest,
        stops: tuple[str, ...],
        call_prefix: str,
        most_prompt: int,
        secrets: tuple[str, ...] = (),
    ) -> None:
        """`call_prefix` begins the ids of calls to which the engine gives none; `most_prompt`
        tokens the prompt can have had; `secrets` may be in no message.
        """
        self._secrets = secrets
        self._request = request
        self._stops = stops
        self._call_prefix = call_prefix
        self._most_prompt = most_prompt
        self._choices = [_ChoiceState() for _ in range(request.num_choices)]
        self._num_prompt = min(request.num_prompt_guess, most_prompt)
        self._num_cached = 0
        self._num_told = 0
        self._num_reasoning = 0
        self.has_begun = False
        """The engine has accepted the request: from then on it has used something."""
        self._is_counted = False
        self.is_complete = False
        """Nothing more of use can come: all choices are over, and the engine has counted them."""

    @property
    def is_over(self) -> bool:
        """True once every choice is complete."""
        return all(choice.reason is not None for choice in self._choices)

    @property
    def usage(self) -> Usage:
        """What was used: as the engine says, else as was counted."""
        counted = sum(choice.num_tokens for choice in self._choices)
        is_told = self._is_counted and self._num_told > 0
        num_completion = self._num_told if is_told else max(self._num_told, counted)
        num_completion = min(num_completion, self._request.max_tokens * len(self._choices))
        return Usage(
            self._num_prompt,
            min(self._num_cached, self._num_prompt),
            num_completion,
            min(self._num_reasoning, num_completion),
        )

    @property
    def reason(self) -> FinishReason:
        """Of the last choice, once all are over."""
        return self._choices[-1].reason or FinishReason.STOP

    @property
    def stop(self) -> str | None:
        """The stop string that ended the only choice."""
        return self._choices[0].stop if len(self._choices) == 1 else None

    def read(self, chunk: Chunk) -> Iterator[GenerationEvent]:
        """The events that `chunk` stands for. Raises: `ServiceError`."""
        if chunk.error is not None:
            raise to_stream_error(chunk.error, self._secrets, has_begun=self.has_begun)
        if chunk.usage is not None:
            self._note_usage(chunk.usage)
        if not self.has_begun:
            self.has_begun = True
            yield Accepted(self._num_prompt, min(self._num_cached, self._num_prompt))
            if self._request.echo:
                for index in range(len(self._choices)):
                    yield Delta(self._request.echo, (), index)
        for piece in chunk.choices:
            yield from self._read_piece(piece)
        if chunk.usage is not None and self.is_over:
            # Beside a choice the figure may be of that one alone.
            self._is_counted = self._is_counted or not chunk.choices or len(self._choices) == 1
            self.is_complete = not chunk.choices

    def _read_piece(self, piece: ChoicePiece) -> Iterator[GenerationEvent]:
        """The same for one choice."""
        if piece.index >= len(self._choices):
            raise StreamBroken("The model's engine has answered with more choices than asked for.")
        choice = self._choices[piece.index]
        if choice.reason is not None:
            return  # nothing follows the end
        events = list(self._read_text(piece, choice))
        if events:
            num_new = 1 if piece.token_ids is None else len(piece.token_ids)
            choice.num_tokens += num_new
            yield from events
        if piece.finish_reason is not None:
            self._finish(piece, choice)
            if len(self._choices) > 1 and choice.reason is not None:
                yield ChoiceFinished(piece.index, choice.reason)

    def _read_text(self, piece: ChoicePiece, choice: _ChoiceState) -> Iterator[GenerationEvent]:
        """Thoughts, text and calls; the tokens go with the first of them."""
        token_ids = tuple(piece.token_ids or ())
        message = piece.delta
        thoughts = "" if message is None else message.reasoning_content or message.reasoning or ""
        text = (piece.text if message is None else message.content) or ""
        calls = [] if message is None else message.tool_calls or []
        logprobs = () if piece.logprobs is None else tuple(_read_scores(piece.logprobs))
        if thoughts:
            yield ReasoningDelta(thoughts, token_ids, piece.index)
            token_ids = ()
        if text or logprobs or (token_ids and not calls):
            yield Delta(text, token_ids, piece.index, logprobs)
            token_ids = ()
        for call in calls:
            yield self._read_call(call, choice, piece.index, token_ids)
            token_ids = ()

    def _read_call(
        self, call: CallPiece, choice: _ChoiceState, index: int, token_ids: tuple[int, ...]
    ) -> ToolCallDelta:
        """The beginning of a call, or more of it."""
        name = "" if call.function is None else call.function.name or ""
        arguments = "" if call.function is None else call.function.arguments or ""
        theirs = len(choice.calls) if call.index is None else call.index
        number = choice.calls.get(theirs)
        if number is not None:
            return ToolCallDelta(number, "", "", arguments, token_ids, index)
        number = choice.calls[theirs] = len(choice.calls)
        if number >= MAX_CALLS or not name:
            raise StreamBroken("The model's engine has sent a tool call that is malformed.")
        call_id = call.id or f"{self._call_prefix}{index}_{number}"
        return ToolCallDelta(number, call_id, name, arguments, token_ids, index)

    def _finish(self, piece: ChoicePiece, choice: _ChoiceState) -> None:
        """One choice is complete. Raises: `StreamBroken` when it was given up."""
        reason = _REASONS.get(piece.finish_reason or "")
        if reason is None:
            raise StreamBroken("The model's engine has given the request up.")
        if reason is FinishReason.STOP and choice.calls:
            reason = FinishReason.TOOL_CALLS  # as some say it of a call that was demanded
        choice.reason = reason
        for matched in (piece.stop_reason, piece.matched_stop):
            if isinstance(matched, str) and matched in self._stops:
                choice.stop = matched

    def _note_usage(self, told: EngineUsage) -> None:
        """What the engine says; parts that it leaves out stay as they were. No prompt is empty, so
        that 0 is what an engine says that does not count.
        """
        if told.prompt_tokens:
            self._num_prompt = min(told.prompt_tokens, self._most_prompt)
        if told.completion_tokens is not None:
            self._num_told = told.completion_tokens
        prompt, completion = told.prompt_tokens_details, told.completion_tokens_details
        if prompt is not None and prompt.cached_tokens is not None:
            self._num_cached = prompt.cached_tokens
        if completion is not None and completion.reasoning_tokens is not None:
            self._num_reasoning = completion.reasoning_tokens


def _read_scores(scores: Scores) -> Iterator[TokenLogprob]:
    """Logprobs in either form. Raises: `StreamBroken`."""
    for one in scores.content or ():
        top = tuple(
            (_UNKNOWN_ID, _spell(other), other.logprob) for other in one.top_logprobs[:MAX_TOP]
        )
        yield TokenLogprob(_UNKNOWN_ID, _spell(one), one.logprob, top)
    if len(scores.tokens) != len(scores.token_logprobs):
        raise StreamBroken("The model's engine has sent logprobs that are malformed.")
    others = scores.top_logprobs or []
    for position, token in enumerate(scores.tokens):
        ranked = (others[position] if position < len(others) else None) or {}
        top = sorted(ranked.items(), key=lambda item: -item[1])[:MAX_TOP]
        yield TokenLogprob(
            _UNKNOWN_ID,
            token.encode(),
            scores.token_logprobs[position],
            tuple((_UNKNOWN_ID, other.encode(), logprob) for other, logprob in top),
        )


def _spell(token: ScoredToken) -> bytes:
    """A token's own bytes; an engine that does not tell them has whole characters."""
    return token.token.encode() if token.bytes is None else bytes(token.bytes)
