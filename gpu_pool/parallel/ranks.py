"""What a worker needs to know of the other ranks of its model, and what it is without any.

Read next: `process_groups` (the real ones).
"""

from typing import Final, Protocol

import torch

from gpu_pool.parallel.place import RankPlace
from gpu_pool.parallel.stage_link import ONLY_STAGE, StageLink
from gpu_pool.parallel.tensor_group import ALONE, TensorGroup


class Ranks(Protocol):
    """The ranks of one model, as one of them sees them."""

    @property
    def place(self) -> RankPlace:
        """Where this one stands."""
        ...

    @property
    def tensor(self) -> TensorGroup:
        """Those that share its layers."""
        ...

    def agree_on_least(self, value: int) -> int:
        """The smallest of all ranks' values."""
        ...

    def create_stage_link(self, hidden_size: int, dtype: torch.dtype) -> StageLink:
        """The way to the stages beside this one, for states of that size."""
        ...


class SoleRank:
    """A process that holds a whole model."""

    def __init__(self) -> None:
        """Shares with nobody."""
        self.place = RankPlace()
        self.tensor: TensorGroup = ALONE

    def agree_on_least(self, value: int) -> int:
        """The value itself."""
        return value

    def create_stage_link(self, hidden_size: int, dtype: torch.dtype) -> StageLink:
        """No further stage."""
        del hidden_size, dtype
        return ONLY_STAGE


SOLE_RANK: Final = SoleRank()
