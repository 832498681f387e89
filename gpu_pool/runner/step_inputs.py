"""From works to the tensors that a model reads, and through it.

Shapes: T tokens of the step, D hidden size. Read next: `gpu_pool.attention.batch`.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gpu_pool.attention.paged import create_paged_step
from gpu_pool.kernels.device_values import to_device
from gpu_pool.lora.row_additions import AdaptedRows, adding
from gpu_pool.models.network import CausalModel
from gpu_pool.runner.group_blocks import GroupBlocks
from gpu_pool.runner.work import Work


def compute_hidden(
    model: CausalModel,
    groups: Sequence[GroupBlocks],
    works: Sequence[Work],
    states_TD: Tensor | None = None,
    complete: Callable[[Tensor], None] | None = None,
) -> Tensor:
    """Hidden states `[T, D]` of all tokens of the step, as far as this stage computes them.

    `complete` fills in the ids that are on the device alone; they are 0 until then.
    """
    token_ids: list[int] = []
    positions: list[int] = []
    for work in works:
        span = work.span
        known = work.row.token_ids[span.start : span.end]
        token_ids.extend(known)
        token_ids.extend(work.item.draft_token_ids)
        token_ids.extend([0] * (work.end - len(token_ids)))
        positions.extend(range(span.start, span.end))
    inputs = to_device([token_ids, positions], torch.int64, groups[0].cache.blocks.device)
    if complete is not None:
        complete(inputs[0])
    steps = [
        create_paged_step([work.spans[index] for work in works], group.cache, group.reach)
        for index, group in enumerate(groups)
    ]
    adapted = list_adapted(works)
    if not adapted:
        return model.forward(inputs[0], inputs[1], steps, states_TD)
    with adding(model, adapted, inputs.device):
        return model.forward(inputs[0], inputs[1], steps, states_TD)


def list_adapted(works: Sequence[Work]) -> list[AdaptedRows]:
    """The tokens of the step, as its rows, that are computed with an adapter."""
    return [
        (work.row.adapter, range(work.first, work.end))
        for work in works
        if work.row.adapter is not None
    ]
