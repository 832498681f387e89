"""KV of a prefix in host memory, by the names of its content.

Owns the records that what brings KV and what takes it along are handed; must not know blocks of the
device. Only full blocks have names, so only those travel.
Read next: `landing` (what comes), `export` (what leaves), `block_hash` (the names).
"""

from dataclasses import dataclass

from contracts.ids import AccountId, RegionId
from gpu_pool.plan import HostBlockId


@dataclass(frozen=True, slots=True)
class Prefix:
    """The first full blocks of a sequence."""

    account_id: AccountId
    root_key: bytes
    """Secret: what names and protects the content of this account under this model. It never leaves
    the process; keys for codes and encryption are derived from it."""
    keys: tuple[bytes, ...]
    """One per block, a chain: each stands for all tokens up to its block's end."""
    regions: tuple[RegionId, ...] | None = None
    """Where the law lets it be; None: anywhere."""


@dataclass(frozen=True, slots=True)
class HostRun:
    """Neighbouring blocks of one sequence and KV group in host memory."""

    group: int
    first: int
    """The index of the first one, counted from the sequence's first block."""
    host_ids: tuple[HostBlockId, ...]
    keys: tuple[bytes, ...]
    """What the blocks hold, or are to hold."""
