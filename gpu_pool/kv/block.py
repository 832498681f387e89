"""A block of KV memory and a sequence's table of them.

Owns the two records; must not know who changes them (`block_pool`, `prefix_cache`).
Read next: `block_pool`.
"""

from dataclasses import dataclass, field

from gpu_pool.plan import BlockId


@dataclass(slots=True, eq=False)
class Block:
    """One block's state. Owned by the pool, linked by the eviction policy while it is free."""

    block_id: BlockId
    num_users: int = 0
    """Tables that list the block; 0 means free."""
    tag: int = 0
    """Grows with every reallocation, so that a reference to earlier content is recognised."""
    is_cached: bool = False
    """The prefix cache can find the content: worth keeping as long as the room allows."""
    older: "Block" = field(init=False, repr=False)
    newer: "Block" = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Links the block to itself: it stands in no list."""
        self.older = self.newer = self


@dataclass(slots=True, eq=False)
class BlockTable:
    """The blocks of one sequence in order of its tokens, and the keys of their contents."""

    root_key: bytes
    """Parent of the first block's key; stands for everything but the tokens."""
    block_ids: list[BlockId] = field(default_factory=list[BlockId])
    keys: list[bytes] = field(default_factory=list[bytes])
    """One per full block hashed so far; they outlive the blocks, for a later return."""
    num_registered: int = 0
    """Leading blocks whose content the prefix cache has been told of."""
