"""Turns plans into tensors, runs the model and draws tokens, one plan at a time.

Owns the rows of sequence state and the KV memory; must not know how weights came to be.
Shapes: T tokens of the step, D hidden size, R rows that sample.
Read next: `sequence_row`, then `gpu_pool.attention.batch`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_pool.attention.batch import Span, create_attention_batch, order_key
from gpu_pool.attention.kv_cache import KvCache
from gpu_pool.attention.padding import pad_context
from gpu_pool.models.llama.model import LlamaModel
from gpu_pool.plan import ForwardPlan, ForwardResult, NewSequence, SampledToken, SequenceId
from gpu_pool.runner.sequence_row import SequenceRow
from gpu_pool.sampling.sampler import sample


@dataclass(frozen=True, slots=True)
class _Work:
    """The part of one sequence in a step. `order` is its place in the plan."""

    order: int
    sequence_id: SequenceId
    row: SequenceRow
    span: Span
    samples: bool


class ModelRunner:
    """One model with its KV memory and the rows of the sequences that run on it."""

    def __init__(
        self, model: LlamaModel, cache: KvCache, *, vocab_size: int, context_window: int
    ) -> None:
        """Starts without rows."""
        self._model = model
        self._cache = cache
        self._vocab_size = vocab_size
        self._table_size = pad_context(context_window) // cache.shape.block_size
        self._device = cache.blocks.device
        self._rows: dict[SequenceId, SequenceRow] = {}

    @torch.inference_mode()
    def execute(self, plan: ForwardPlan) -> ForwardResult:
        """The tokens drawn by `plan`, in its order."""
        for sequence_id in plan.released:
            del self._rows[sequence_id]
        for new in plan.new:
            self._add_row(new)
        works = self._schedule(plan)
        if not works:
            return ForwardResult(plan.step, ())
        hidden_TD = self._forward(works)
        sampled = self._sample(works, hidden_TD)
        for work in works:
            work.row.num_computed = work.span.end
        return ForwardResult(plan.step, sampled)

    def _add_row(self, new: NewSequence) -> None:
        """Begins a sequence."""
        assert new.sequence_id not in self._rows, "the sequence has a row already"
        self._rows[new.sequence_id] = SequenceRow(
            new, table_size=self._table_size, vocab_size=self._vocab_size, device=self._device
        )

    def _schedule(self, plan: ForwardPlan) -> list[_Work]:
        """The plan's work in the order of the step, blocks appended and made clean."""
        works: list[_Work] = []
        stale: list[int] = []
        block_size = self._cache.shape.block_size
        for order, item in enumerate(plan.scheduled):
            row = self._rows[item.sequence_id]
            (block_ids,) = item.new_block_ids
            if block_ids:
                row.add_blocks(block_ids)
            span = row.schedule(item.num_tokens, block_size)
            if block_ids:
                stale.extend(row.list_stale_blocks(len(block_ids), span, block_size))
            works.append(_Work(order, item.sequence_id, row, span, item.samples))
        if stale:
            self._cache.clear(torch.tensor(stale, device=self._device))
        works.sort(key=lambda work: order_key(work.span))
        return works

    def _forward(self, works: Sequence[_Work]) -> Tensor:
        """Hidden states `[T, D]` of all tokens of the step."""
        token_ids: list[int] = []
        positions: list[int] = []
        for work in works:
            span = work.span
            token_ids.extend(work.row.token_ids[span.start : span.end])
            positions.extend(range(span.start, span.end))
        inputs = torch.tensor([token_ids, positions], device=self._device)
        batch = create_attention_batch([work.span for work in works], self._cache)
        return self._model.forward(inputs[0], inputs[1], self._cache, batch)

    def _sample(self, works: Sequence[_Work], hidden_TD: Tensor) -> tuple[SampledToken, ...]:
        """Draws for the sequences that ask for it and appends to their rows."""
        drawing: list[_Work] = []
        last_tokens: list[int] = []
        end = 0
        for work in works:
            end += work.span.num_tokens
            if work.samples:
                assert work.span.end == len(work.row.token_ids), "samples before the newest token"
                drawing.append(work)
                last_tokens.append(end - 1)
        if not drawing:
            return ()
        if len(last_tokens) < hidden_TD.shape[0]:
            hidden_TD = hidden_TD[torch.tensor(last_tokens, device=self._device)]
        logits_RV = self._model.compute_logits(hidden_TD)
        token_ids = sample(logits_RV, [work.row.to_sampling_row() for work in drawing])
        drawn = sorted(zip(drawing, token_ids, strict=True), key=lambda pair: pair[0].order)
        for work, token_id in drawn:
            work.row.append(token_id)
        return tuple(SampledToken(work.sequence_id, token_id) for work, token_id in drawn)
