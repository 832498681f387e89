"""The scheduler's section of the node's settings.

Owns names, defaults and ranges; must not know where they are read from.
Read next: `scheduler`.
"""

import msgspec


class NgramSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Guessing next tokens from a sequence's own history. Raises: `ValueError` out of range."""

    max_draft_tokens: int = 8
    """Tokens of one guess."""
    max_step_drafts: int = 32
    """Guessed tokens of all sequences in a step; more would cost more than they save."""
    min_match_tokens: int = 2
    """Tokens of an ending that must have occurred before."""
    max_match_tokens: int = 4
    """Longer endings are not looked for."""

    def __post_init__(self) -> None:
        """Checks the ranges."""
        if not 1 <= self.max_draft_tokens <= 64 or self.max_step_drafts < 1:
            raise ValueError("max_draft_tokens is 1 to 64, max_step_drafts at least 1")
        if not 1 <= self.min_match_tokens <= self.max_match_tokens <= 16:
            raise ValueError("min_match_tokens and max_match_tokens are 1 to 16, in this order")


class SchedulerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How much one engine core takes on. Raises: `ValueError` when the numbers contradict."""

    max_batch_tokens: int = 2048
    """Tokens computed in one step, decode and prefill together."""
    max_chunk_tokens: int = 1024
    """Tokens of one prompt in one step while other prompts are to be computed too; the same share
    of steps that have room for fewer."""
    max_pause_ms: int = 25
    """Of answers while a step computes prompts beside them, or three of their own steps if those
    last longer; 0: as long as a full step takes."""
    max_running: int = 64
    """Sequences that hold blocks at the same time."""
    max_waiting: int = 512
    """Sequences accepted beyond `max_running`; further ones get `PoolSaturated`."""
    max_waiting_tokens: int = 4 << 20
    """Tokens of all waiting prompts together, unless there is only one."""
    max_account_waiting: int = 384
    """Waiting sequences of one account."""
    max_account_waiting_tokens: int = 3 << 20
    """Tokens of one account's waiting prompts together, unless there is only one."""
    prefix_caching: bool = True
    """False computes the prompt of every request in full; its choices share it."""
    ngram: NgramSettings | None = None
    """How next tokens are guessed; None does not guess."""

    def __post_init__(self) -> None:
        """Checks the ranges."""
        if self.max_running < 1 or self.max_chunk_tokens < 1 or self.max_waiting < 0:
            raise ValueError("max_running and max_chunk_tokens start at 1, max_waiting at 0")
        if min(self.max_waiting_tokens, self.max_account_waiting_tokens) < 1:
            raise ValueError("the queue's limits in tokens start at 1")
        if self.max_pause_ms < 0:
            raise ValueError("max_pause_ms starts at 0")
        if self.max_account_waiting < 0:
            raise ValueError("max_account_waiting starts at 0")
        if self.max_batch_tokens < self.max_running:
            raise ValueError(
                "max_batch_tokens must hold one token of each of max_running sequences"
            )
