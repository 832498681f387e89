"""Turns plans into tensors, runs the model and draws tokens, one plan at a time.

Owns the rows of sequence state and the KV memory; must not know how weights came to be.
Shapes: T tokens of the step, D hidden size.
Read next: `sequence_row`, `drawing`, then `gpu_pool.attention.batch`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from gpu_pool.attention.batch import Span, order_key
from gpu_pool.attention.padding import pad_context
from gpu_pool.attention.paged import create_paged_step
from gpu_pool.models.network import CausalModel
from gpu_pool.parallel.stage_link import ONLY_STAGE, StageLink
from gpu_pool.plan import (
    ForwardPlan,
    ForwardResult,
    HostMemory,
    NewSequence,
    ScheduledSequence,
    SequenceId,
)
from gpu_pool.runner.drawing import draw_tokens, score_prompts, share_logits
from gpu_pool.runner.group_blocks import GroupBlocks, KvGroupMemory
from gpu_pool.runner.sequence_row import SequenceRow
from gpu_pool.runner.work import Work


class ModelRunner:
    """One model with its KV memory and the rows of the sequences that run on it."""

    def __init__(
        self,
        model: CausalModel,
        groups: Sequence[KvGroupMemory],
        *,
        vocab_size: int,
        context_window: int,
        link: StageLink = ONLY_STAGE,
    ) -> None:
        """Starts without rows. The groups' blocks are of one size in tokens."""
        self._model = model
        self._link = link
        self._undrawn: dict[SequenceId, tuple[int, int]] = {}
        """On a rank that does not draw: the step that draws, and where its tokens end."""
        self._groups = tuple([GroupBlocks(group) for group in groups])
        self._vocab_size = vocab_size
        self._block_size = groups[0].cache.shape.block_size
        self._table_size = pad_context(context_window) // self._block_size
        self._device = groups[0].cache.blocks.device
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
        for sampled in drawn.sampled:
            step, end = self._undrawn.get(sampled.sequence_id, (None, 0))
            if step == drawn.step:  # else the row is gone, or another run's
                del self._undrawn[sampled.sequence_id]
                row = self._rows[sampled.sequence_id]
                row.append(sampled.token_ids)
                row.num_computed = min(end, len(row.token_ids) - 1)

    @torch.inference_mode()
    def execute(self, plan: ForwardPlan) -> ForwardResult:
        """The tokens drawn by `plan`, in its order; none on a rank that does not draw."""
        for sequence_id in plan.released:
            del self._rows[sequence_id]
            self._undrawn.pop(sequence_id, None)
        self._move_blocks(plan)
        for new in plan.new:
            self._add_row(new)
        self._give_blocks(plan)
        failed = tuple(item.sequence_id for item in plan.scheduled if not self._is_sound(item))
        works = self._schedule(plan, failed)
        if not works:
            return ForwardResult(plan.step, (), (), failed)
        hidden_TD = self._forward(works)
        for index, group in enumerate(self._groups):
            group.move_out([move for move in plan.copied_out if move.group == index])
        if not self._link.place.draws:
            self._hand_on(plan.step, works, hidden_TD)
            return ForwardResult(plan.step, (), (), failed)
        prompt_scores = score_prompts(works, hidden_TD, self._model.compute_logits)
        sampled = draw_tokens(works, hidden_TD, self._model.compute_logits)
        for work in works:  # what was drawn last has not been computed, nor what no draft foresaw
            work.row.num_computed = min(work.span.end, len(work.row.token_ids) - work.item.samples)
        return ForwardResult(plan.step, sampled, prompt_scores, failed)

    def _hand_on(self, step: int, works: Sequence[Work], hidden_TD: Tensor) -> None:
        """Gives others what they need of a step, and notes what they will draw."""
        if self._link.place.is_last_stage:
            share_logits(works, hidden_TD, self._model.compute_logits)
        else:
            self._link.send(hidden_TD)
        for work in works:
            work.row.num_computed = work.span.end
            if work.item.samples:
                self._undrawn[work.item.sequence_id] = (step, work.span.end)

    def _add_row(self, new: NewSequence) -> None:
        """Begins a sequence."""
        assert new.sequence_id not in self._rows, "the sequence has a row already"
        self._rows[new.sequence_id] = SequenceRow(
            new,
            num_groups=len(self._groups),
            table_size=self._table_size,
            vocab_size=self._vocab_size,
            device=self._device,
        )

    def _move_blocks(self, plan: ForwardPlan) -> None:
        """Saves what is preempted, zeroes what may not remain, brings back what goes on."""
        for index, group in enumerate(self._groups):
            group.move_out([move for move in plan.moved_out if move.group == index])
        for group, block_ids in zip(self._groups, plan.zeroed, strict=False):
            group.zero(block_ids)
        for index, group in enumerate(self._groups):
            group.move_in([move for move in plan.moved_in if move.group == index])

    def _give_blocks(self, plan: ForwardPlan) -> None:
        """Hands out all new blocks, before any table is looked at."""
        for item in plan.scheduled:
            self._rows[item.sequence_id].take_blocks(item)
            for group, ids, tags in zip(
                self._groups, item.new_block_ids, item.new_block_tags, strict=False
            ):
                if ids:
                    group.tags.learn(ids, tags)

    def _is_sound(self, item: ScheduledSequence) -> bool:
        """False when a sequence would read what has become another's."""
        tables = self._rows[item.sequence_id].tables
        return all(
            table.agrees_with(group.tags) for table, group in zip(tables, self._groups, strict=True)
        )

    def _schedule(self, plan: ForwardPlan, failed: tuple[SequenceId, ...]) -> list[Work]:
        """The plan's work in the order of the step, less `failed`; new blocks are made clean."""
        rows: list[tuple[int, tuple[Span, ...], SequenceRow]] = []
        stale: list[list[int]] = [[] for _ in self._groups]
        for order, item in enumerate(plan.scheduled):
            if item.sequence_id in failed:
                continue
            row = self._rows[item.sequence_id]
            spans = row.schedule(item.num_tokens, len(item.draft_token_ids), self._block_size)
            for group, block_ids in enumerate(item.new_block_ids):
                if block_ids:
                    stale[group] += row.tables[group].list_stale_blocks(
                        len(block_ids), spans[group], self._block_size
                    )
            rows.append((order, spans, row))
        for group, block_ids in zip(self._groups, stale, strict=True):
            group.zero(block_ids)
        works: list[Work] = []
        for order, spans, row in sorted(rows, key=lambda part: order_key(part[1][0])):
            first = works[-1].end if works else 0
            works.append(Work(order, first, plan.scheduled[order], row, spans))
        return works

    def _forward(self, works: Sequence[Work]) -> Tensor:
        """Hidden states `[T, D]` of all tokens of the step, as far as this stage computes them."""
        token_ids: list[int] = []
        positions: list[int] = []
        for work in works:
            span = work.span
            token_ids.extend(work.row.token_ids[span.start : span.end])
            token_ids.extend(work.item.draft_token_ids)
            positions.extend(range(span.start, span.end))
        inputs = torch.tensor([token_ids, positions], device=self._device)
        steps = [
            create_paged_step([work.spans[index] for work in works], group.cache, group.reach)
            for index, group in enumerate(self._groups)
        ]
        states_TD = self._link.receive(len(token_ids))
        return self._model.forward(inputs[0], inputs[1], steps, states_TD)
