"""What goes from one stage of a pipeline to the next: a step's states.

Shapes: T tokens, D hidden size. Read next: `process_groups` (the real ones).
"""

from typing import Final, Protocol

from torch import Tensor

from gpu_pool.parallel.place import RankPlace


class StageLink(Protocol):
    """One rank's way to the stages beside its own. All ranks take the same steps in one order."""

    @property
    def place(self) -> RankPlace:
        """Where it stands."""
        ...

    def receive(self, num_tokens: int) -> Tensor | None:
        """The states `[T, D]` of a step from the stage before; None where this is the first."""
        ...

    def send(self, states_TD: Tensor) -> None:
        """Hands a step's states on; waits at most until those of the step before were taken."""
        ...


class OnlyStage:
    """A process that holds the whole model."""

    def __init__(self) -> None:
        """First stage and last."""
        self.place = RankPlace()

    def receive(self, num_tokens: int) -> Tensor | None:
        """Nothing comes from elsewhere."""
        del num_tokens
        return None

    def send(self, states_TD: Tensor) -> None:
        """Never called: the last stage keeps its states."""
        raise AssertionError("there is no further stage")


ONLY_STAGE: Final = OnlyStage()
