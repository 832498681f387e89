"""Drives an executor with plans, as the scheduler would, for one or many sequences."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from contracts.inference import SamplingParams
from gpu_pool.plan import (
    AdapterFile,
    BlockId,
    Executor,
    ForwardPlan,
    NewSequence,
    ScheduledSequence,
    SequenceId,
)

GREEDY = SamplingParams(temperature=0.0, seed=0)


@dataclass(slots=True)
class DrivenSequence:
    """What the driver knows of a sequence."""

    token_ids: list[int]
    num_prompt_tokens: int
    sampling: SamplingParams
    adapter: AdapterFile | None = None
    num_computed: int = 0
    block_ids: list[BlockId] = field(default_factory=list[BlockId])
    num_given: int = 0
    """Blocks the executor has been told of."""
    has_row: bool = False

    @property
    def output(self) -> list[int]:
        """Tokens drawn so far."""
        return self.token_ids[self.num_prompt_tokens :]


class PlanDriver:
    """Keeps blocks and rows in step with an executor."""

    def __init__(self, executor: Executor) -> None:
        """All blocks are free; they are handed out last first, so that ids are not in order."""
        self.executor = executor
        self.sequences: dict[SequenceId, DrivenSequence] = {}
        self.free = [BlockId(i) for i in range(executor.info.num_blocks)]
        self.adapter: AdapterFile | None = None
        """That of sequences that are added from now on."""
        self._num_steps = 0
        self._released: list[SequenceId] = []

    def add(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams = GREEDY,
        *,
        num_prompt_tokens: int | None = None,
        cached_blocks: Sequence[BlockId] = (),
    ) -> SequenceId:
        """A new sequence; `cached_blocks` already hold its first tokens."""
        sequence_id = SequenceId(len(self.sequences))
        self.sequences[sequence_id] = DrivenSequence(
            token_ids=list(prompt),
            num_prompt_tokens=num_prompt_tokens or len(prompt),
            sampling=sampling,
            adapter=self.adapter,
            num_computed=len(cached_blocks) * self.executor.info.block_size,
            block_ids=list(cached_blocks),
        )
        return sequence_id

    def step(self, work: Sequence[tuple[SequenceId, int]]) -> list[SequenceId]:
        """One plan of (sequence, number of tokens); returns those that drew a token."""
        new: list[NewSequence] = []
        scheduled: list[ScheduledSequence] = []
        for sequence_id, num_tokens in work:
            sequence = self.sequences[sequence_id]
            if not sequence.has_row:
                new.append(self._begin(sequence_id))
            scheduled.append(self._schedule(sequence_id, num_tokens))
        self._num_steps += 1
        plan = ForwardPlan(self._num_steps, tuple(self._released), tuple(new), tuple(scheduled))
        self._released.clear()
        self.executor.submit(plan)
        result = self.executor.collect()
        assert result.step == self._num_steps
        assert [s.sequence_id for s in result.sampled] == [
            s.sequence_id for s in scheduled if s.samples
        ]
        for sampled in result.sampled:
            self.sequences[sampled.sequence_id].token_ids += sampled.token_ids
        return [sampled.sequence_id for sampled in result.sampled]

    def release(self, sequence_id: SequenceId, *, keeps_blocks: bool = False) -> None:
        """Forgets a row with the next plan."""
        self._released.append(sequence_id)
        if not keeps_blocks:
            self.free.extend(self.sequences[sequence_id].block_ids)

    def generate(
        self, sequence_ids: Sequence[SequenceId], num_tokens: int, *, max_chunk: int = 1 << 30
    ) -> list[list[int]]:
        """Outputs of all sequences, computed together; prompts in chunks of `max_chunk`."""
        while True:
            work: list[tuple[SequenceId, int]] = []
            for sequence_id in sequence_ids:
                sequence = self.sequences[sequence_id]
                if len(sequence.output) < num_tokens:
                    left = len(sequence.token_ids) - sequence.num_computed
                    work.append((sequence_id, min(left, max_chunk)))
            if not work:
                return [self.sequences[sequence_id].output for sequence_id in sequence_ids]
            self.step(work)

    def _begin(self, sequence_id: SequenceId) -> NewSequence:
        """Tells the executor of a sequence."""
        sequence = self.sequences[sequence_id]
        sequence.has_row = True
        return NewSequence(
            sequence_id=sequence_id,
            token_ids=tuple(sequence.token_ids),
            num_prompt_tokens=sequence.num_prompt_tokens,
            num_computed_tokens=sequence.num_computed,
            sampling=sequence.sampling,
            adapter=sequence.adapter,
        )

    def _schedule(self, sequence_id: SequenceId, num_tokens: int) -> ScheduledSequence:
        """Work on `num_tokens`, with the blocks that takes."""
        sequence = self.sequences[sequence_id]
        sequence.num_computed += num_tokens
        size = self.executor.info.block_size
        while len(sequence.block_ids) * size < sequence.num_computed:
            sequence.block_ids.append(self.free.pop())
        new_ids = tuple(sequence.block_ids[sequence.num_given :])
        sequence.num_given = len(sequence.block_ids)
        samples = sequence.num_computed == len(sequence.token_ids)
        groups = (new_ids,) * len(self.executor.info.kv_groups)
        return ScheduledSequence(sequence_id, num_tokens, groups, samples)
