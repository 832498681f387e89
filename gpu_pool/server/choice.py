"""One sequence of a request, from its start to its last word.

Owns the order of a choice's events and what they are made of; must not know the other choices.
Read next: `generation` (which joins them), `text.text_stream`.
"""

from collections.abc import Sequence
from typing import Protocol

from contracts.errors import ErrorReport, ServiceError, to_error_report
from contracts.inference import (
    Delta,
    FinishReason,
    GenerationEvent,
    PromptScored,
)
from gpu_pool.engine.messages import SequenceFinished, TextsEncoded
from gpu_pool.plan import SequenceId, TokenScore
from gpu_pool.server.prepared_request import PreparedRequest
from gpu_pool.server.resumed_answer import ResumedAnswer
from gpu_pool.server.text.text_stream import AnyDelta


class ChoiceOwner(Protocol):
    """Who joins the choices of a request."""

    def emit(self, event: GenerationEvent) -> None:
        """Passes on an event of a choice."""
        ...

    def on_choice_started(self, index: int, num_cached_tokens: int) -> None:
        """Its first computation begins."""
        ...

    def on_choice_computed(self, index: int) -> None:
        """Its prompt is computed, so that others find it in the cache."""
        ...

    def on_choice_over(self, index: int, reason: FinishReason, stop: str | None) -> None:
        """It is complete, perhaps because of a stop string."""
        ...

    def on_choice_failed(self, error: ErrorReport) -> None:
        """It cannot be completed."""
        ...


class Choice:
    """One answer; a listener of its sequence. No event follows its end."""

    __slots__ = (
        "_index",
        "_is_aborted",
        "_is_computed",
        "_num_scored",
        "_owner",
        "_prepared",
        "_prompt_scored",
        "_resumed",
        "_scored",
        "_sequence_id",
        "_stream",
        "is_over",
        "num_completion_tokens",
    )

    def __init__(self, index: int, prepared: PreparedRequest, owner: ChoiceOwner) -> None:
        """Nothing happens before `start`."""
        self._index = index
        self._prepared = prepared
        self._owner = owner
        self._stream = prepared.create_stream(index)
        self._prompt_scored = prepared.create_prompt_scored()
        self._scored = prepared.create_scored()
        resumption = prepared.request.resumption
        self._resumed = (
            None if resumption is None else ResumedAnswer(resumption, prepared.echo, self._stream)
        )
        self._sequence_id = SequenceId(0)
        self._is_aborted = False
        self._is_computed = False
        self._num_scored = 0
        self.is_over = False
        self.num_completion_tokens = 0
        """Tokens sampled so far, as far as this side knows; all of them at the end."""
        if self._resumed is not None:
            self._is_computed = True  # what the answer begins with is out
            self.num_completion_tokens = self._stream.num_tokens

    @property
    def num_reasoning_tokens(self) -> int:
        """Those of them that were thoughts."""
        return self._stream.num_reasoning_tokens

    def start(self) -> None:
        """Hands the sequence to the core, unless only the end of it is missing.

        Raises: `ModelCold`.
        """
        prepared = self._prepared
        if self._resumed is not None and self._end_at_once():
            return
        arriving = prepared.arriving if prepared.is_first(self._index) else None
        self._sequence_id = prepared.client.add(prepared.describe(self._index), self, arriving)
        if arriving is not None:
            arriving.begin(prepared.client, self._sequence_id)

    def abort(self) -> None:
        """Ends it early; `on_choice_over` follows."""
        if not self.is_over and not self._is_aborted:
            self._is_aborted = True
            self._prepared.client.abort(self._sequence_id)

    def drop(self) -> None:
        """Ends it early, and nothing follows."""
        if not self.is_over:
            self.is_over = True
            self._prepared.client.drop(self._sequence_id)

    def on_started(self, num_cached_tokens: int) -> None:
        """The first computation begins; a later one after a preemption is not told."""
        if not self.is_over:
            self._owner.on_choice_started(self._index, num_cached_tokens)

    def on_prompt_scores(self, scores: Sequence[TokenScore]) -> None:
        """Passes on how likely the next tokens of the prompt were."""
        if self.is_over or self._is_aborted:
            return
        start = self._num_scored
        self._num_scored += len(scores)
        ids = self._prepared.prompt.token_ids[start : self._num_scored]
        self._owner.emit(PromptScored(self._prompt_scored.spell(ids, scores), self._index))

    def on_tokens(self, token_ids: Sequence[int], scores: Sequence[TokenScore]) -> None:
        """Passes on what became visible, and ends where the answer does."""
        if self.is_over or self._is_aborted:
            return
        self._begin()
        if self._prepared.max_tokens == 0:
            self._end(FinishReason.LENGTH, 0)
            return
        logprobs = self._scored.spell(token_ids, scores) if scores else ()
        self._show(self._stream.push(token_ids, logprobs))
        self.num_completion_tokens = self._stream.num_tokens
        if self._stream.is_over:
            self._end(self._name_reason(FinishReason.STOP), self._stream.num_tokens)

    def on_encoded(self, encoded: TextsEncoded) -> None:
        """A core that generates tells none."""

    def on_finished(self, finished: SequenceFinished) -> None:
        """The engine's last word."""
        if self.is_over:
            return
        self.num_completion_tokens = finished.num_completion_tokens
        if finished.error is not None:
            self.is_over = True
            self._owner.on_choice_failed(finished.error)
            return
        reason = finished.reason or FinishReason.STOP
        if reason is FinishReason.ABORTED or self._is_aborted:
            self._end(FinishReason.ABORTED, finished.num_completion_tokens)
            return
        self._begin()
        if self._prepared.max_tokens == 0:
            self._end(FinishReason.LENGTH, 0)
            return
        self._show(self._stream.finish())
        reason = FinishReason.STOP if self._stream.is_over else reason
        self._end(self._name_reason(reason), finished.num_completion_tokens)

    def on_broken(self, error: ServiceError) -> None:
        """The core is gone, and with it the word on tokens that were not passed on."""
        if not self.is_over:
            self.is_over = True
            self._owner.on_choice_failed(to_error_report(error))

    def _begin(self) -> None:
        """The prompt is computed: what the answer begins with goes out."""
        if self._is_computed:
            return
        self._is_computed = True
        if self._prepared.echo:
            self._owner.emit(Delta(self._prepared.echo, (), self._index))
        self._owner.on_choice_computed(self._index)

    def _show(self, deltas: Sequence[AnyDelta]) -> None:
        """Passes on `deltas`, less what the reader has from another node."""
        for delta in deltas if self._resumed is None else self._resumed.cut(deltas):
            self._owner.emit(delta)

    def _end_at_once(self) -> bool:
        """Ends a resumed answer of which the reader has every token; False when it goes on."""
        is_full = self._stream.num_tokens >= self._prepared.max_tokens
        if not self._stream.is_over and not is_full:
            return False
        self._owner.on_choice_started(self._index, 0)
        self._show(() if self._stream.is_over else self._stream.finish())
        reason = FinishReason.STOP if self._stream.is_over else FinishReason.LENGTH
        self._end(self._name_reason(reason), self._stream.num_tokens)
        return True

    def _name_reason(self, reason: FinishReason) -> FinishReason:
        """`reason`, unless the answer is over because it calls tools."""
        if reason is FinishReason.STOP and self._stream.num_calls:
            return FinishReason.TOOL_CALLS
        return reason

    def _end(self, reason: FinishReason, num_completion_tokens: int) -> None:
        """It is complete; the core need not go on with it."""
        self.num_completion_tokens = num_completion_tokens
        self.is_over = True
        self._prepared.client.drop(self._sequence_id)
        self._owner.on_choice_over(self._index, reason, self._stream.stop)
