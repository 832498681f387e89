"""What the ranks that share a layer do together, and what a process does that shares with nobody.

Shapes: T tokens, D hidden size, R rows, V vocabulary. Read next: `process_groups` (the real ones).
"""

from typing import Final, Protocol

from torch import Tensor


class TensorGroup(Protocol):
    """The ranks of one stage. All call the same methods in the same order."""

    @property
    def rank(self) -> int:
        """This process's number, from 0."""
        ...

    @property
    def size(self) -> int:
        """How many they are."""
        ...

    def add_up(self, part_TD: Tensor) -> Tensor:
        """The sum of all ranks' parts, on every rank; the part may be overwritten."""
        ...

    def join_columns(self, part_RV: Tensor) -> Tensor:
        """All ranks' columns side by side on rank 0; elsewhere the part, which nobody reads."""
        ...


class Alone:
    """A group of one."""

    def __init__(self) -> None:
        """Number 0 of one."""
        self.rank = 0
        self.size = 1

    def add_up(self, part_TD: Tensor) -> Tensor:
        """The part itself."""
        return part_TD

    def join_columns(self, part_RV: Tensor) -> Tensor:
        """The part itself."""
        return part_RV


ALONE: Final = Alone()
