"""Carries out plans: whose rows and blocks there are, and what is computed for them, in order.

Owns the rows of sequence state and the KV memory; must not know how weights came to be, nor how
works become tokens. Read next: `lane`, `sequence_row`, `group_blocks`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from gpu_pool.attention.batch import Span, order_key
from gpu_pool.attention.padding import pad_context
from gpu_pool.lora.loading import LoadedAdapter
from gpu_pool.plan import (
    AdapterFile,
    ForwardPlan,
    ForwardResult,
    HostMemory,
    NewSequence,
    ScheduledSequence,
    SequenceId,
)
from gpu_pool.runner.group_blocks import GroupBlocks, KvGroupMemory
from gpu_pool.runner.lane import Draws, Lane, Outcome
from gpu_pool.runner.sequence_row import SequenceRow
from gpu_pool.runner.transfers import Moment
from gpu_pool.runner.work import Work

CreateLane = Callable[[Sequence[GroupBlocks], int], Lane]
"""A lane over these groups, whose tables have at most so many blocks."""
FindAdapter = Callable[[AdapterFile], LoadedAdapter]
"""An adapter that has been loaded."""


@dataclass(frozen=True, slots=True)
class StepUnderWay:
    """A plan that has been begun."""

    number: int
    outcome: Outcome | None
    """None where nothing was to be computed."""
    failed: tuple[SequenceId, ...]
    copied: Moment | None
    """When what the plan has copied out is on the host; None where that is nothing."""


class ModelRunner:
    """The KV memory of one model and the rows of the sequences that run on it."""

    def __init__(
        self,
        groups: Sequence[KvGroupMemory],
        create_lane: CreateLane,
        *,
        vocab_size: int,
        context_window: int,
        find_adapter: FindAdapter | None = None,
    ) -> None:
        """Starts without rows. The groups' blocks are of one size in tokens.

        Without `find_adapter` no sequence brings one.
        """
        self._find_adapter = find_adapter
        self._groups = tuple([GroupBlocks(group) for group in groups])
        self._tags = tuple([group.tags for group in self._groups])
        self._vocab_size = vocab_size
        self._block_size = groups[0].cache.shape.block_size
        self._table_size = pad_context(context_window) // self._block_size
        self._device = groups[0].cache.blocks.device
        self._lane = create_lane(self._groups, self._table_size)
        self._rows: dict[SequenceId, SequenceRow] = {}

    @property
    def host_memory(self) -> tuple[HostMemory, ...]:
        """The host blocks of each group."""
        return tuple([group.host_memory for group in self._groups])

    def close(self) -> None:
        """Gives back what is held beside tensors."""
        for group in self._groups:
            group.close()

    def take_in(self, drawn: ForwardResult) -> None:
        """Learns what another rank has drawn, before the next plan that needs it."""
        self._lane.take_in(drawn)

    @torch.inference_mode()
    def begin(self, plan: ForwardPlan) -> StepUnderWay:
        """Begins a step behind those under way; it need not be over."""
        for sequence_id in plan.released:
            row = self._rows.pop(sequence_id)
            row.let_go(self._tags)
            self._lane.release(row)
        self._move_blocks(plan)
        for new in plan.new:
            self._add_row(new)
        self._give_blocks(plan)
        failed = self._find_unsound(plan)
        works = self._schedule(plan, failed)
        outcome = self._lane.run(plan.step, works) if works else None
        for index, group in enumerate(self._groups):
            group.copy_out([move for move in plan.copied_out if move.group == index])
        copied = Moment(self._device) if plan.copied_out else None
        return StepUnderWay(plan.step, outcome, failed, copied)

    @torch.inference_mode()
    def finish(self, step: StepUnderWay) -> ForwardResult:
        """The tokens drawn by the oldest step under way, in its plan's order."""
        draws = Draws() if step.outcome is None else step.outcome.settle()
        if step.copied is not None:
            step.copied.wait()
        return ForwardResult(step.number, draws.sampled, draws.prompt_scores, step.failed)

    def _add_row(self, new: NewSequence) -> None:
        """Begins a sequence."""
        assert new.sequence_id not in self._rows, "the sequence has a row already"
        adapter: LoadedAdapter | None = None
        if new.adapter is not None:
            assert self._find_adapter is not None, "no adapter is taken"
            adapter = self._find_adapter(new.adapter)
        row = SequenceRow(
            new,
            num_groups=len(self._groups),
            table_size=self._table_size,
            vocab_size=self._vocab_size,
            device=self._device,
            adapter=adapter,
        )
        self._rows[new.sequence_id] = row
        self._lane.add(row)

    def _move_blocks(self, plan: ForwardPlan) -> None:
        """Saves what is preempted, zeroes what may not remain, brings back what goes on."""
        for index, group in enumerate(self._groups):
            group.move_out([move for move in plan.moved_out if move.group == index])
        for group, block_ids in zip(self._groups, plan.zeroed, strict=False):
            group.zero(block_ids)
        for blocks in plan.given_up:
            self._groups[blocks.group].give_up(blocks)
        for index, group in enumerate(self._groups):
            group.move_in([move for move in plan.moved_in if move.group == index])

    def _give_blocks(self, plan: ForwardPlan) -> None:
        """Hands out all new blocks, before any table is looked at."""
        for item in plan.scheduled:
            row = self._rows[item.sequence_id]
            has_news = any(item.new_block_ids)
            if has_news or row.is_new or item.nums_dropped:
                row.take_blocks(item, self._tags)
            if has_news:
                self._lane.take_blocks(row, item)

    def _find_unsound(self, plan: ForwardPlan) -> tuple[SequenceId, ...]:
        """Scheduled sequences that would read what has become another's."""
        if not any(known.is_suspect for known in self._tags):
            return ()
        unsound = {key for key, row in self._rows.items() if not row.agrees_with(self._tags)}
        if not unsound:  # a window's block has come back to where it was, or to a neighbour
            for known in self._tags:
                known.is_suspect = False
        return tuple(i.sequence_id for i in plan.scheduled if i.sequence_id in unsound)

    def _schedule(self, plan: ForwardPlan, failed: tuple[SequenceId, ...]) -> list[Work]:
        """The plan's work in the order of the step, less `failed`; new blocks are made clean."""
        rows: list[tuple[int, tuple[Span, ...], SequenceRow]] = []
        stale: list[list[int]] = [[] for _ in self._groups]
        for order, item in enumerate(plan.scheduled):
            if item.sequence_id in failed:
                continue
            row = self._rows[item.sequence_id]
            spans = row.schedule(item.num_tokens, len(item.draft_token_ids), self._block_size)
            if any(item.new_block_ids):
                for group, block_ids in enumerate(_list_stale(item, row, spans, self._block_size)):
                    stale[group] += block_ids
            rows.append((order, spans, row))
        for group, block_ids in zip(self._groups, stale, strict=True):
            group.zero(block_ids)
        works: list[Work] = []
        first = 0
        for order, spans, row in sorted(rows, key=lambda part: order_key(part[1][0])):
            works.append(Work(order, first, plan.scheduled[order], row, spans))
            first += spans[0].num_tokens
        return works


def _list_stale(
    item: ScheduledSequence, row: SequenceRow, spans: tuple[Span, ...], block_size: int
) -> list[list[int]]:
    """The new blocks of each group that have to be made clean."""
    groups = zip(row.tables, item.new_block_ids, spans, strict=True)
    return [
        table.list_stale_blocks(len(block_ids), span, block_size)
        for table, block_ids, span in groups
    ]
