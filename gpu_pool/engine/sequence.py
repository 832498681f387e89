"""One sequence on its way through the engine.

Owns the record; the scheduler alone changes it. Must not know how it is scheduled.
Read next: `scheduler`.
"""

from dataclasses import dataclass

from contracts.ids import AccountId
from contracts.inference import SamplingParams
from gpu_pool.engine.drafting import Drafter
from gpu_pool.engine.token_matcher import TokenMatcher
from gpu_pool.kv.block import BlockTable
from gpu_pool.plan import AdapterFile, SequenceId


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence:
    """A prompt and what has been generated from it.

    Steps may be planned before earlier ones are collected, so there are two counts: tokens *known*
    (`token_ids`) and tokens *planned*, which include those that steps in flight will sample.
    """

    sequence_id: SequenceId
    account_id: AccountId
    priority: int
    """Larger goes first."""
    arrival: int
    """Order of arrival in this core."""
    deadline_ms: int
    reject_if_busy: bool
    sampling: SamplingParams
    """`seed` and `max_tokens` are set."""
    max_tokens: int
    token_ids: list[int]
    """Prompt, then everything sampled."""
    num_prompt_tokens: int
    table: BlockTable
    adapter: AdapterFile | None = None
    """What its tokens are computed with besides the model."""
    awaits_adapter: bool = False
    """That is not there, and nothing is computed before."""
    matcher: TokenMatcher | None = None
    """Set where the answer has to match a grammar; only the mask desk touches it."""
    num_matched_tokens: int = 0
    """Those of `token_ids` behind which `matcher` stands."""
    mask: bytes | None = None
    """What `matcher` allows next, once that has been found out."""
    drafter: Drafter | None = None
    """Set where next tokens may be guessed."""
    num_drafts_in_flight: int = 0
    """Guessed tokens of the step in flight; where it ends is not known until it is over."""
    num_scored_tokens: int = 0
    """Leading prompt tokens whose scores have been told, where they are asked for."""
    num_queued_tokens: int = 0
    """Its length when it joined the waiting queue, which the queue keeps count of."""
    num_missing_tokens: int = 0
    """Those of them that the KV memory did not have."""
    held_cost: int = 0
    """What was computed while others could not start, so that it could: its account's to pay."""
    started_step: int = 0
    """The step in which it last got its blocks."""
    num_cached_tokens: int = 0
    """Tokens that needed no computing when it last got its blocks."""
    num_computed_tokens: int = 0
    """Tokens whose KV is in the blocks or will be after the steps in flight."""
    num_pending_tokens: int = 0
    """Tokens that steps in flight will sample."""
    is_running: bool = False
    """Holds blocks."""
    has_row: bool = False
    """The executor knows it."""
    has_started: bool = False
    """Has run at least once, a preemption since notwithstanding."""
    num_runs: int = 0
    """Grows when blocks are given up: results of earlier steps no longer count."""

    @property
    def num_completion_tokens(self) -> int:
        """Tokens sampled and known."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens a next step could compute: 1 in decode, the rest of the prompt in prefill."""
        return len(self.token_ids) + self.num_pending_tokens - self.num_computed_tokens

    @property
    def awaits_mask(self) -> bool:
        """Nothing can be sampled before it is known what is allowed."""
        return self.matcher is not None and self.mask is None

    @property
    def is_kept_in_host(self) -> bool:
        """Its KV waits in host memory for its mask: on the device it would be of no use before, and
        blocks that are moved in come with the plan that computes with them.
        """
        return self.awaits_mask and self.table.swapped is not None

    @property
    def may_be_planned(self) -> bool:
        """False while the steps in flight sample all that was asked for, or what a mask needs, and
        until there is one.
        """
        if not self._lacks_tokens or self.awaits_mask:
            return False
        return not (self.num_pending_tokens and self._needs_known_tokens)

    @property
    def waits_for_step(self) -> bool:
        """The steps in flight sample of it, and not the last that was asked for: whatever is
        planned behind them holds it up.
        """
        return self.num_pending_tokens > 0 and self._lacks_tokens

    @property
    def _lacks_tokens(self) -> bool:
        """More were asked for than are known or being sampled."""
        num_asked = self.num_prompt_tokens + self.max_tokens
        return len(self.token_ids) + self.num_pending_tokens < num_asked

    @property
    def _needs_known_tokens(self) -> bool:
        """The next step depends on tokens that those in flight sample."""
        is_guessing = self.drafter is not None and self.drafter.is_hot
        return self.matcher is not None or self.num_drafts_in_flight > 0 or is_guessing

    @property
    def max_drafts(self) -> int:
        """Guessed tokens that a next step may compute."""
        if self.drafter is None or self.num_pending_tokens:
            return 0
        return self.max_tokens - self.num_completion_tokens - 1

    @property
    def num_scores_each(self) -> int:
        """Scores that each prompt token computed next brings, its alternatives' included."""
        asked = self.sampling.num_prompt_logprobs
        if asked is None or self.num_computed_tokens >= self.num_prompt_tokens:
            return 0
        return 1 + asked

    @property
    def reusable_tokens(self) -> list[int]:
        """Known tokens that need not be computed if their KV is found.

        Only computing tells scores, so a prompt that is to be scored reuses only what has been.
        """
        if self.sampling.num_prompt_logprobs is None:
            return self.token_ids
        is_scored = self.num_scored_tokens >= self.num_prompt_tokens
        return self.token_ids if is_scored else self.token_ids[: self.num_scored_tokens]

    @property
    def precedence(self) -> tuple[int, int]:
        """Sorts those that go first to the front."""
        return (-self.priority, self.arrival)
