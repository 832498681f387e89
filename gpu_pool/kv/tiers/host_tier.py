"""Blocks in the host's memory, as they are.

Must not know why a block is kept. Copies are made by numpy, which lets the engine's own thread go
on meanwhile; a block that is dropped while it is read stays until the reader has it.
Read next: `shelves`, `file_tier`.
"""

import threading
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gpu_pool.kv.tiers.namespace import BlockName, TierNamespace
from gpu_pool.kv.tiers.settings import HostTierSettings
from gpu_pool.kv.tiers.shelves import Entry, Shelves
from gpu_pool.kv.tiers.tier import TierBooks


class HostTier:
    """A `Tier` in memory."""

    def __init__(self, settings: HostTierSettings) -> None:
        """Empty; takes memory as it fills."""
        self._shelves = Shelves(settings.max_bytes, settings.account_bytes)
        self._blocks: dict[Entry, npt.NDArray[np.uint8]] = {}
        self._lock = threading.Lock()

    @property
    def books(self) -> TierBooks:
        """How full the tier is."""
        return TierBooks(self._shelves.num_bytes, num_damaged=0, is_off=False)

    def has(self, space: TierNamespace, name: BlockName) -> bool:
        """True while the block is here."""
        return Entry(space.owner, name.text) in self._blocks

    def may_have(self, space: TierNamespace, name: BlockName) -> bool:
        """True while the block is here: nobody else puts any."""
        return self.has(space, name)

    def keep(self, space: TierNamespace, name: BlockName, block: memoryview) -> bool:
        """Copies a block, and drops others where that is too much."""
        entry = Entry(space.owner, name.text)
        if entry in self._blocks or not self._shelves.fits(len(block)):
            return False
        copy = np.empty(len(block), np.uint8)
        np.copyto(copy, np.frombuffer(block, np.uint8))
        with self._lock:
            if entry in self._blocks:
                return False
            self._blocks[entry] = copy
            for gone in self._shelves.put(entry, len(block)):  # it may be this very one
                self._blocks.pop(gone, None)
            return entry in self._blocks

    def fetch(self, space: TierNamespace, name: BlockName, block: memoryview) -> bool:
        """Fills `block`; False when the block has been dropped."""
        entry = Entry(space.owner, name.text)
        with self._lock:
            kept = self._blocks.get(entry)
            self._shelves.touch(entry)
        if kept is None or kept.size != len(block):
            return False
        np.copyto(np.frombuffer(block, np.uint8), kept)
        return True

    def remove(self, space: TierNamespace, names: Sequence[BlockName]) -> None:
        """Drops blocks."""
        with self._lock:
            for name in names:
                entry = Entry(space.owner, name.text)
                self._shelves.remove(entry)
                self._blocks.pop(entry, None)

    def close(self) -> None:
        """Gives the memory back."""
        with self._lock:
            self._blocks.clear()
