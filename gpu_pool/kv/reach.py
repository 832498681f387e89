"""Which blocks of a KV group later tokens still read: arithmetic by the group's kind.

Must not know blocks. Read next: `group_memory`.
"""

from dataclasses import dataclass

from gpu_pool.plan import KvGroup, KvGroupKind


@dataclass(frozen=True, slots=True)
class Reach:
    """How far back the layers of one group look. Units: tokens."""

    group: KvGroup
    block_size: int

    @property
    def is_local(self) -> bool:
        """True when early blocks can be given back while the sequence goes on."""
        return self.group.kind in (KvGroupKind.SLIDING_WINDOW, KvGroupKind.CHUNKED)

    @property
    def window(self) -> int:
        """Tokens of the window or chunk."""
        assert self.group.window is not None, "a local group without a window"
        return self.group.window

    def find_first_block(self, position: int) -> int:
        """The index of the first block that the token at `position`, or a later one, reads."""
        if self.group.kind is KvGroupKind.SLIDING_WINDOW:
            return max(0, position - self.window + 1) // self.block_size
        if self.group.kind is KvGroupKind.CHUNKED:
            return (position - position % self.window) // self.block_size
        return 0

    def count_blocks(self, num_tokens: int, max_step_tokens: int) -> int:
        """The most blocks that a sequence of `num_tokens` ever holds at once.

        In a local group a ring is enough: the window, what one step adds, and cut blocks.
        """
        num_blocks = -(-num_tokens // self.block_size)
        if not self.is_local:
            return num_blocks
        return min(num_blocks, -(-(self.window + max_step_tokens) // self.block_size) + 1)

    def fit_step(self, num_blocks: int) -> int:
        """The most tokens of one sequence that a step may add when there are `num_blocks`.

        Where these are too few for a ring they hold whole sequences, as in other groups: of what
        fits into them nothing has to leave.
        """
        ring = (num_blocks - 1) * self.block_size - self.window if self.is_local else 0
        return ring if ring > 0 else num_blocks * self.block_size
