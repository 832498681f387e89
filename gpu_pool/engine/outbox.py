"""What has to be told to the server since the last time.

Owns the collecting; must not know transports. Read next: `core`, which sends it.
"""

from contracts.errors import ServiceError, to_error_report
from contracts.inference import FinishReason
from gpu_pool.engine.messages import (
    CoreLoad,
    SequenceFinished,
    SequenceStarted,
    SequenceTokens,
    StepOutput,
)
from gpu_pool.plan import SequenceId


class Outbox:
    """Events in the order in which one `StepOutput` lists them."""

    def __init__(self) -> None:
        """Empty."""
        self._started: list[SequenceStarted] = []
        self._tokens: list[SequenceTokens] = []
        self._finished: list[SequenceFinished] = []

    def add_started(self, sequence_id: SequenceId, num_cached_tokens: int) -> None:
        """Notes that a sequence runs for the first time."""
        self._started.append(SequenceStarted(sequence_id, num_cached_tokens))

    def add_token(self, sequence_id: SequenceId, token_id: int) -> None:
        """Notes a generated token."""
        self._tokens.append(SequenceTokens(sequence_id, (token_id,)))

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
        """Everything noted so far, which is then forgotten; None when there is nothing."""
        if not (self._started or self._tokens or self._finished):
            return None
        output = StepOutput(tuple(self._started), tuple(self._tokens), tuple(self._finished), load)
        self._started, self._tokens, self._finished = [], [], []
        return output
