"""What sampled tokens do to a sequence, and whether they end it; of a constrained answer, the mask
desk finds that out.

Must not know queues, blocks or messages. Read next: `scheduler` (the caller).
"""

from contracts.errors import ConstraintUnmet, InvariantBroken, ServiceError
from contracts.inference import FinishReason
from gpu_pool.engine.sequence import Sequence
from gpu_pool.plan import NO_TOKEN, ExecutorInfo, PromptScores, SampledTokens, TokenScore

Outcome = FinishReason | ServiceError | None
"""Why a sequence ended; None while it goes on."""


class Intake:
    """Knows what ends an answer of one model."""

    def __init__(self, info: ExecutorInfo) -> None:
        """Takes vocabulary and end-of-sequence tokens from `info`."""
        self._vocab_size = info.vocab_size
        self._eos_token_ids = frozenset(info.eos_token_ids)

    def append(self, sequence: Sequence, sampled: SampledTokens) -> tuple[int, Outcome]:
        """Takes tokens in, up to one that ends the sequence.

        Returns how many of them are to be told, and why the sequence ended.
        """
        sequence.num_pending_tokens -= 1
        sequence.num_computed_tokens += len(sampled.token_ids) - 1
        num_drafts, sequence.num_drafts_in_flight = sequence.num_drafts_in_flight, 0
        for num_told, token_id in enumerate(sampled.token_ids):
            if token_id == NO_TOKEN:
                return num_told, self._explain_no_token(sequence)
            if not 0 <= token_id < self._vocab_size:
                return num_told, InvariantBroken("The model produced an invalid token.")
            sequence.token_ids.append(token_id)
            if token_id in self._eos_token_ids and not sequence.sampling.ignore_eos:
                return num_told, FinishReason.STOP
            outcome = _judge(sequence, token_id)
            if outcome is not None:
                return num_told + (not isinstance(outcome, ServiceError)), outcome
        if sequence.drafter is not None:
            if num_drafts:
                sequence.drafter.learn(num_drafts, len(sampled.token_ids) - 1)
            else:
                sequence.drafter.observe(sequence.token_ids)
        return len(sampled.token_ids), None

    def _explain_no_token(self, sequence: Sequence) -> ServiceError:
        """Why nothing could be drawn: bad words may have left nothing of what a grammar allows, or
        of a vocabulary as small as they are many; else no logit was a number.
        """
        num_spellings = len(sequence.sampling.bad_spellings)
        is_bound = sequence.matcher is not None
        if num_spellings and (is_bound or num_spellings >= self._vocab_size):
            allowed = "of what its schema allows " if is_bound else ""
            return ConstraintUnmet(
                f"The answer cannot go on: `bad_words` leave nothing {allowed}there.",
                param="bad_words",
            )
        return InvariantBroken("What the model computed is not a number.")

    def score(self, sequence: Sequence, scored: PromptScores) -> tuple[TokenScore, ...]:
        """The scores of prompt tokens that were not told before a preemption."""
        news = scored.scores[sequence.num_scored_tokens - scored.first :]
        sequence.num_scored_tokens += len(news)
        return news


def _judge(sequence: Sequence, token_id: int) -> Outcome:
    """Why `sequence` ends with `token_id`, its newest token; None when it goes on, or its matcher
    has to take that in before anybody knows.
    """
    if sequence.matcher is not None:
        assert sequence.mask is not None
        is_right = sequence.mask[token_id // 8] >> token_id % 8 & 1
        return None if is_right else InvariantBroken("The model left the grammar of the answer.")
    is_last = sequence.num_completion_tokens == sequence.max_tokens
    return FinishReason.LENGTH if is_last else None
