"""What every tier does, whatever it keeps blocks in.

Read next: `host_tier`, `file_tier`, `mooncake_tier`, `tier_store` (the caller).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gpu_pool.kv.tiers.namespace import BlockName, TierNamespace


@dataclass(frozen=True, slots=True)
class TierBooks:
    """How much a tier holds and why it does not hold more."""

    num_bytes: int
    num_damaged: int
    """Blocks that were there and not what they should be; each was a miss."""
    is_off: bool
    """Nothing is kept; what is there can still be read."""
    num_unread: int = 0
    """Reads that failed and say nothing of the block, which stays; each was a miss."""
    may_try: bool = False
    """It is off, and time to see whether a block is kept again."""


class Tier(Protocol):
    """Keeps blocks by name. `has` and `books` return at once; any thread may call anything."""

    @property
    def books(self) -> TierBooks:
        """How full the tier is."""
        ...

    def has(self, space: TierNamespace, name: BlockName) -> bool:
        """True when `fetch` is likely to bring the block."""
        ...

    def may_have(self, space: TierNamespace, name: BlockName) -> bool:
        """True when `fetch` may bring the block, which only it can tell; never False where `has` is
        True, unless there is no prospect at all now.
        """
        ...

    def keep(self, space: TierNamespace, name: BlockName, block: memoryview) -> bool:
        """Copies a block; False when it was there already or cannot be kept."""
        ...

    def fetch(self, space: TierNamespace, name: BlockName, block: memoryview) -> bool:
        """Fills `block`, or returns False: nothing of it may be used then."""
        ...

    def remove(self, space: TierNamespace, names: Sequence[BlockName]) -> None:
        """Forgets blocks, those that others have put, too."""
        ...

    def close(self) -> None:
        """Lets go of everything; nothing may begin after it, and what is under way is a miss."""
        ...
