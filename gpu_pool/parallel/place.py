"""Where a rank stands among those that hold one model.

Ranks are numbered stage by stage: with 2 tensor ranks and 2 stages, 0 and 1 are the first stage.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ParallelShape:
    """Each layer is divided among `tensor` ranks, the layers among `pipeline` stages."""

    tensor: int = 1
    pipeline: int = 1

    @property
    def num_ranks(self) -> int:
        """Processes in all."""
        return self.tensor * self.pipeline

    def __str__(self) -> str:
        """For logs and errors."""
        return f"tensor {self.tensor} x pipeline {self.pipeline}"


@dataclass(frozen=True, slots=True)
class RankPlace:
    """One rank. `RankPlace()` is a process that holds the whole model."""

    shape: ParallelShape = ParallelShape()
    rank: int = 0

    @property
    def tensor_rank(self) -> int:
        """Its number among those that share its layers."""
        return self.rank % self.shape.tensor

    @property
    def stage(self) -> int:
        """Its stage of the pipeline."""
        return self.rank // self.shape.tensor

    @property
    def is_first_stage(self) -> bool:
        """It turns token ids into states."""
        return self.stage == 0

    @property
    def is_last_stage(self) -> bool:
        """It turns states into logits."""
        return self.stage == self.shape.pipeline - 1

    @property
    def draws(self) -> bool:
        """It is the one rank that draws tokens."""
        return self.is_last_stage and self.tensor_rank == 0
