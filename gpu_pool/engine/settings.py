"""The scheduler's section of the node's settings.

Owns names, defaults and ranges; must not know where they are read from.
Read next: `scheduler`.
"""

import msgspec


class SchedulerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How much one engine core takes on. Raises: `ValueError` when the numbers contradict."""

    max_batch_tokens: int = 2048
    """Tokens computed in one step, decode and prefill together."""
    max_chunk_tokens: int = 1024
    """Tokens of one prompt in one step while other prompts are to be computed too."""
    max_running: int = 64
    """Sequences that hold blocks at the same time."""
    max_waiting: int = 512
    """Sequences accepted beyond `max_running`; further ones get `PoolSaturated`."""
    prefix_caching: bool = True
    """False computes every prompt in full."""

    def __post_init__(self) -> None:
        """Checks the ranges."""
        if self.max_running < 1 or self.max_chunk_tokens < 1 or self.max_waiting < 0:
            raise ValueError("max_running and max_chunk_tokens start at 1, max_waiting at 0")
        if self.max_batch_tokens < self.max_running:
            raise ValueError(
                "max_batch_tokens must hold one token of each of max_running sequences"
            )
