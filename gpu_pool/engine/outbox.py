"""What has to be told to the server since the last time.

Owns the collecting; must not know transports. Read next: `core`, which sends it.
"""

from contracts.errors import ServiceError, to_error_report
from contracts.inference import FinishReason
from gpu_pool.engine.messages import (
    CoreLoad,
    PromptScored,
    SequenceFinished,
    SequenceStarted,
    SequenceTokens,
    StepOutput,
)
from gpu_pool.plan import SampledTokens, SequenceId, TokenScore


class Outbox:
    """Events in the order in which one `StepOutput` lists them."""

    def __init__(self) -> None:
        """Empty."""
        self._started: list[SequenceStarted] = []
        self._prompt_scores: list[PromptScored] = []
        self._tokens: list[SequenceTokens] = []
        self._finished: list[SequenceFinished] = []
        self._told: tuple[int, int, int] | None = None

    def add_started(self, sequence_id: SequenceId, num_cached_tokens: int) -> None:
        """Notes that a sequence runs for the first time."""
        self._started.append(SequenceStarted(sequence_id, num_cached_tokens))

    def add_prompt_scores(self, sequence_id: SequenceId, scores: tuple[TokenScore, ...]) -> None:
        """Notes how likely the next tokens of a prompt were."""
        if scores:
            self._prompt_scores.append(PromptScored(sequence_id, scores))

    def add_tokens(self, sampled: SampledTokens, count: int) -> None:
        """Notes the first `count` of the tokens sampled for a sequence."""
        if count:
            token_ids, scores = sampled.token_ids[:count], sampled.scores[:count]
            self._tokens.append(SequenceTokens(sampled.sequence_id, token_ids, scores))

    def add_finished(
        self, sequence_id: SequenceId, num_completion_tokens: int, reason: FinishReason
    ) -> None:
        """Notes the end of a sequence."""
        self._finished.append(SequenceFinished(sequence_id, num_completion_tokens, reason))

    def add_failed(
        self, sequence_id: SequenceId, num_completion_tokens: int, error: ServiceError
    ) -> None:
        """Notes that a sequence ended in an error, or was refused."""
        report = to_error_report(error)
        self._finished.append(SequenceFinished(sequence_id, num_completion_tokens, None, report))

    def take(self, load: CoreLoad) -> StepOutput | None:
        """Everything noted so far, which is then forgotten; None when there is nothing, nor more or
        less of prompts to compute, or of KV memory, than was last told.
        """
        state = load.latest_id, load.num_queued_tokens, load.num_blocks
        if self._told is None:
            self._told = (0, 0, load.num_blocks)
        has_events = self._started or self._prompt_scores or self._tokens or self._finished
        if not has_events and state == self._told:
            return None
        self._told = state
        output = StepOutput(
            tuple(self._started),
            tuple(self._tokens),
            tuple(self._finished),
            load,
            tuple(self._prompt_scores),
        )
        self._started, self._tokens, self._finished = [], [], []
        self._prompt_scores = []
        return output
