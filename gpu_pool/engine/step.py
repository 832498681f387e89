"""A step from its planning to its result.

Owns the plan in the making and what the scheduler has to remember of it while it is in flight.
Must not know how work is chosen. Read next: `scheduler`.
"""

from typing import NamedTuple

from gpu_pool.engine.sequence import Sequence
from gpu_pool.kv.block import NewBlocks
from gpu_pool.kv.host_pool import HostMoves
from gpu_pool.plan import (
    BlockId,
    BlockRange,
    ForwardPlan,
    ForwardResult,
    NewSequence,
    ScheduledSequence,
    SequenceId,
)
from gpu_pool.prefill_cost import count_pairs


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

    def __init__(self, number: int) -> None:
        """An empty step."""
        self.number = number
        self.num_tokens = 0
        """Planned so far, drafts included."""
        self.num_drafts = 0
        self.num_pairs = 0.0
        """Tokens at which those of prompts look, all together."""
        self.work: list[Work] = []
        self.started: list[Sequence] = []
        """Got their blocks; a row follows with their first work."""
        self._new: list[NewSequence] = []
        self._scheduled: list[ScheduledSequence] = []

    def add(
        self,
        sequence: Sequence,
        num_tokens: int,
        news: NewBlocks,
        drafts: tuple[int, ...] = (),
    ) -> None:
        """Computes the next `num_tokens` of `sequence`, whose table has just got `news`."""
        if not sequence.has_row:
            sequence.has_row = True
            self._new.append(_describe(sequence))
        samples = num_tokens == sequence.num_uncomputed_tokens
        sequence.num_computed_tokens += num_tokens
        sequence.num_pending_tokens += samples
        sequence.num_drafts_in_flight = len(drafts)
        self.num_tokens += num_tokens + len(drafts)
        self.num_drafts += len(drafts)
        end = sequence.num_computed_tokens
        if end <= sequence.num_prompt_tokens:
            self.num_pairs += count_pairs(end - num_tokens, end)
        self.work.append(Work(sequence, sequence.num_runs, end, samples))
        assert not (samples and sequence.awaits_mask)
        self._scheduled.append(
            ScheduledSequence(
                sequence.sequence_id,
                num_tokens,
                news.block_ids,
                samples,
                news.tags,
                news.nums_dropped,
                drafts,
                allowed_tokens=sequence.mask if samples else None,
            )
        )

    def to_plan(
        self,
        released: tuple[SequenceId, ...],
        zeroed: tuple[tuple[BlockId, ...], ...],
        given_up: tuple[BlockRange, ...],
        moves: HostMoves,
    ) -> ForwardPlan:
        """The plan for the executor."""
        new, scheduled = tuple(self._new), tuple(self._scheduled)
        return ForwardPlan(self.number, released, new, scheduled, zeroed, given_up, *moves)

    def list_live(self) -> dict[SequenceId, Work]:
        """The work whose results count."""
        return {work.sequence.sequence_id: work for work in self.work if work.counts}

    def is_answered_by(self, result: ForwardResult) -> bool:
        """True when `result` has exactly what this step asked for."""
        failed = set(result.failed)
        sampling = [work.sequence.sequence_id for work in self.work if work.samples]
        expected = [sequence_id for sequence_id in sampling if sequence_id not in failed]
        answered = [sampled.sequence_id for sampled in result.sampled]
        return result.step == self.number and answered == expected


def _describe(sequence: Sequence) -> NewSequence:
    """What the executor has to know of a sequence whose first tokens are in its blocks already."""
    return NewSequence(
        sequence.sequence_id,
        tuple(sequence.token_ids),
        sequence.num_prompt_tokens,
        sequence.num_computed_tokens,
        sequence.sampling,
        sequence.adapter,
    )
