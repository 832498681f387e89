"""A block of KV memory and a sequence's tables of them.

Owns the records; must not know who changes them (`block_pool`, `group_memory`, `kv_memory`).
Read next: `block_pool`.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from contracts.ids import AccountId, RegionId
from gpu_pool.plan import BlockId, HostBlockId


@dataclass(slots=True, eq=False)
class Block:
    """One block's state. Owned by the pool, linked by the eviction policy while it is free."""

    block_id: BlockId
    num_users: int = 0
    """Tables that list the block; 0 means free."""
    tag: int = 0
    """Grows with every reallocation, so that a reference to earlier content is recognised."""
    owner: AccountId | None = None
    """Whose content the prefix index can find here; None: nothing worth keeping."""
    is_protected: bool = False
    """Counts towards the owner's floor; set by the eviction policy while the block is free."""
    older: "Block" = field(init=False, repr=False)
    newer: "Block" = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Links the block to itself: it stands in no list."""
        self.older = self.newer = self


class AloneCount(NamedTuple):
    """Blocks of a table that nobody else uses, and what has to be as it was for that to hold."""

    num_blocks: int
    num_shifts: int
    """Of the pool."""
    num_dropped: int
    """Of the table."""
    end: int
    """Blocks behind this index are newer, and the table's alone."""


@dataclass(slots=True, eq=False)
class GroupTable:
    """The blocks that one sequence holds in one KV group. Indices count from the first token."""

    block_ids: list[BlockId] = field(default_factory=list[BlockId])
    """Held blocks; the first one's index is `num_dropped`."""
    num_dropped: int = 0
    """Leading blocks that no later token reads: given back, or never held."""
    num_told: int = 0
    """Blocks below this index are known to the executor."""
    num_dropped_told: int = 0
    """What the executor believes `num_dropped` to be."""
    num_promised: int = 0
    """Blocks that the sequence will need and nobody else may start with."""
    alone: AloneCount | None = None
    """What was counted last; None: nothing since it began."""

    @property
    def end(self) -> int:
        """The index behind the last block."""
        return self.num_dropped + len(self.block_ids)

    @property
    def is_told(self) -> bool:
        """True when the executor knows all of this."""
        return self.num_told == self.end and self.num_dropped_told == self.num_dropped


@dataclass(frozen=True, slots=True)
class SwappedBlocks:
    """What a sequence has in host memory: left there by a preemption, or landed there."""

    num_tokens: int
    """Leading tokens whose KV is there, or was out of every later token's reach."""
    groups: tuple[tuple[int, tuple[HostBlockId, ...]], ...]
    """Per group the index of the first block and all blocks from there on."""
    num_shared: int = 0
    """Leading blocks of groups that keep everything which are not there but in the cache, or were
    when the rest began to land."""


@dataclass(slots=True, eq=False)
class BlockTable:
    """All blocks of one sequence, and the keys of their contents."""

    root_key: bytes
    """Parent of the first block's key; stands for everything but the tokens."""
    account_id: AccountId
    groups: tuple[GroupTable, ...]
    is_private: bool = False
    """Nothing may remain: blocks are zeroed when their last user leaves."""
    priority: int = 0
    """The sequence's: nobody waits for what one of lower priority computes."""
    regions: tuple[RegionId, ...] | None = None
    """Where its content may be; None: anywhere."""
    keys: list[bytes] = field(default_factory=list[bytes])
    """One per full block hashed so far; they outlive the blocks, for a later return."""
    num_registered: int = 0
    """Blocks below this index have been entered in the prefix index, as far as they were held."""
    num_announced: int = 0
    """Keys below this index are announced: others wait for them instead of computing the same."""
    swapped: SwappedBlocks | None = None
    """Set between a preemption and the return from it, or a landing and the start."""
    is_landing: bool = False
    """Its KV comes from elsewhere and is not there yet."""


@dataclass(frozen=True, slots=True)
class FoundPrefix:
    """What a look-up brought; valid until any block changes hands."""

    num_blocks: int
    """Blocks to be shared."""
    num_tokens: int
    """Tokens that need no computing."""
    is_awaited: bool
    """The block behind it is being computed for another sequence of the same namespace, which is
    served no later than the one that looks."""
    is_swapped: bool = False
    """Not in the cache but in host memory."""


@dataclass(frozen=True, slots=True)
class NewBlocks:
    """What the executor has to be told of a table, one tuple per group."""

    block_ids: tuple[tuple[BlockId, ...], ...]
    tags: tuple[tuple[int, ...], ...]
    nums_dropped: tuple[int, ...]
    """Leading blocks of each table that are no longer held; () when that has not changed."""
