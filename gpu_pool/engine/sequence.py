"""One sequence on its way through the engine.

Owns the record; the scheduler alone changes it. Must not know how it is scheduled.
Read next: `scheduler`.
"""

from dataclasses import dataclass

from contracts.ids import AccountId
from contracts.inference import SamplingParams
from gpu_pool.kv.block import BlockTable
from gpu_pool.plan import SequenceId


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
    deadline_unix_ms: int
    reject_if_busy: bool
    sampling: SamplingParams
    """`seed` and `max_tokens` are set."""
    max_tokens: int
    token_ids: list[int]
    """Prompt, then everything sampled."""
    num_prompt_tokens: int
    table: BlockTable
    num_computed_tokens: int = 0
    """Tokens whose KV is in the blocks or will be after the steps in flight."""
    num_pending_tokens: int = 0
    """Tokens that steps in flight will sample."""
    is_running: bool = False
    """Holds blocks and a row in the executor."""
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
    def is_fully_planned(self) -> bool:
        """The steps in flight sample all that was asked for."""
        return self.num_completion_tokens + self.num_pending_tokens >= self.max_tokens

    @property
    def precedence(self) -> tuple[int, int]:
        """Sorts those that go first to the front."""
        return (-self.priority, self.arrival)
