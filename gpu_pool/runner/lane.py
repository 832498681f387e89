"""How a step's work becomes tokens: what every lane offers to the model runner.

A lane computes works in order and owns what it keeps of rows beside them. Its outcomes may be
settled after later works have begun: then their tokens are still on the device.
Read next: `host_lane`, `device_lane`.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from gpu_pool.plan import ForwardResult, PromptScores, SampledTokens, ScheduledSequence
from gpu_pool.runner.sequence_row import SequenceRow
from gpu_pool.runner.work import Work


class Draws(NamedTuple):
    """What a step has drawn and scored, both in the plan's order."""

    sampled: tuple[SampledTokens, ...] = ()
    prompt_scores: tuple[PromptScores, ...] = ()


class Outcome(Protocol):
    """Works that have been begun."""

    def settle(self) -> Draws:
        """Waits for them and lets their rows take in what was drawn; outcomes settle in order."""
        ...


class Lane(Protocol):
    """One way of computing works."""

    def add(self, row: SequenceRow) -> None:
        """A new row, without blocks."""
        ...

    def take_blocks(self, row: SequenceRow, item: ScheduledSequence) -> None:
        """The row's tables have just got the blocks of `item`."""
        ...

    def release(self, row: SequenceRow) -> None:
        """Nothing will be computed for the row any more."""
        ...

    def run(self, step: int, works: Sequence[Work]) -> Outcome:
        """Begins works, of which there is at least one, and moves their rows on."""
        ...

    def take_in(self, drawn: ForwardResult) -> None:
        """Learns what another rank has drawn."""
        ...
