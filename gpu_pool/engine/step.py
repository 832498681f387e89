"""A step from its planning to its result.

Owns the plan in the making and what the scheduler has to remember of it while it is in flight.
Must not know how work is chosen. Read next: `scheduler`.
"""

from typing import NamedTuple

from gpu_pool.engine.sequence import Sequence
from gpu_pool.plan import BlockId, ForwardPlan, NewSequence, ScheduledSequence, SequenceId


class Work(NamedTuple):
    """What a step will have done for one sequence."""

    sequence: Sequence
    run: int
    """The sequence's `num_runs` when this was planned."""
    end: int
    """Tokens computed once the step is over."""
    samples: bool

    @property
    def counts(self) -> bool:
        """False when the sequence has been finished or preempted since."""
        return self.run == self.sequence.num_runs


class Step:
    """One step; grows while it is planned."""

    def __init__(self, number: int, num_groups: int) -> None:
        """An empty step. The `num_groups` KV groups are alike and use the same block ids."""
        self.number = number
        self.work: list[Work] = []
        self._new: list[NewSequence] = []
        self._scheduled: list[ScheduledSequence] = []
        self._num_groups = num_groups

    def start(self, sequence: Sequence) -> None:
        """Gives `sequence` a row; the first `num_computed_tokens` are in its blocks already."""
        self._new.append(
            NewSequence(
                sequence.sequence_id,
                tuple(sequence.token_ids),
                sequence.num_prompt_tokens,
                sequence.num_computed_tokens,
                sequence.sampling,
            )
        )

    def add(self, sequence: Sequence, num_tokens: int, new_ids: tuple[BlockId, ...]) -> None:
        """Computes the next `num_tokens` of `sequence`, whose table has just got `new_ids`."""
        samples = num_tokens == sequence.num_uncomputed_tokens
        sequence.num_computed_tokens += num_tokens
        sequence.num_pending_tokens += samples
        end = sequence.num_computed_tokens
        self.work.append(Work(sequence, sequence.num_runs, end, samples))
        groups = (new_ids,) * self._num_groups
        scheduled = ScheduledSequence(sequence.sequence_id, num_tokens, groups, samples)
        self._scheduled.append(scheduled)

    def to_plan(self, released: tuple[SequenceId, ...]) -> ForwardPlan:
        """The plan for the executor."""
        return ForwardPlan(self.number, released, tuple(self._new), tuple(self._scheduled))
