"""One token for each of a number of rows, from nothing but memory that stays where it is.

All that a step reads lies in tensors made once: the rows that compute and their positions, which
the host fills in, and what the device keeps of the rows. So the same calls serve every step, can be
recorded, and the tokens that one step draws are read by the next without ever being on the host.
Shapes: B rows that compute, R places, C blocks of the longest table, V vocabulary.
Read next: `decode_graphs`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gpu_pool.attention.device_batch import DeviceBatch, plan_decodes
from gpu_pool.attention.paged import PagedStep
from gpu_pool.kernels.draw import draw
from gpu_pool.kernels.gather_tables import gather_tables
from gpu_pool.models.network import CausalModel
from gpu_pool.runner.device_rows import DeviceRows
from gpu_pool.runner.group_blocks import GroupBlocks


@dataclass(frozen=True, slots=True)
class _GroupInputs:
    """What one KV group's attention reads of a step."""

    tables_BC: Tensor
    slots_B: Tensor
    slot_ids: Tensor
    """`[layers, B]`."""
    layer_steps: Tensor
    """`[layers, 1]`: from a slot of the first layer to that of each."""


class DecodeProgram:
    """The calls of a decode step for up to so many rows."""

    def __init__(
        self, model: CausalModel, groups: Sequence[GroupBlocks], rows: DeviceRows, max_rows: int
    ) -> None:
        """Makes all that steps read, for `max_rows` at once."""
        device = rows.newest_R.device
        self.max_rows = max_rows
        self._model = model
        self._groups = groups
        self._rows = rows
        self._asked_2B = torch.zeros((2, max_rows), dtype=torch.int32, device=device)
        self._inputs = [
            _create_inputs(group, table_RC, max_rows)
            for group, table_RC in zip(groups, rows.tables, strict=True)
        ]
        self.fill((), ())

    def fill(self, places: Sequence[int], positions: Sequence[int]) -> None:
        """Says which rows compute the tokens at which positions; all others are nobody's."""
        asked_2B = np.zeros((2, self.max_rows), dtype=np.int32)
        asked_2B[0] = self._rows.scratch
        asked_2B[:, : len(places)] = places, positions
        asked = torch.from_numpy(asked_2B)
        if self._asked_2B.is_cuda:
            asked = asked.pin_memory()
        self._asked_2B.copy_(asked, non_blocking=True)

    def run(self, num_rows: int, *, has_filters: bool) -> Tensor:
        """The tokens `[num_rows]` that the first rows draw; they are their newest from now on.

        Without `has_filters` none of them has top-k, top-p or min-p.
        """
        places_B, positions_B = self._asked_2B[:, :num_rows].unbind()
        rows = self._rows
        wide_places_B, wide_positions_B = places_B.long(), positions_B.long()
        steps = [
            _create_step(group, table_RC, inputs, places_B, positions_B)
            for group, table_RC, inputs in zip(self._groups, rows.tables, self._inputs, strict=True)
        ]
        token_ids_B = rows.newest_R.index_select(0, wide_places_B)
        hidden_BD = self._model.forward(token_ids_B, wide_positions_B, steps)
        logits_BV = self._model.compute_logits(hidden_BD)
        parameters = rows.select_parameters(
            wide_places_B, wide_positions_B + 1, has_filters=has_filters
        )
        drawn_B = draw(logits_BV, parameters)
        rows.set_newest(wide_places_B, drawn_B)
        return drawn_B


def _create_inputs(group: GroupBlocks, table_RC: Tensor, max_rows: int) -> _GroupInputs:
    """Memory for the largest step."""
    shape, device = group.cache.shape, table_RC.device
    layers = torch.arange(shape.num_layers, device=device)[:, None]
    return _GroupInputs(
        torch.zeros((max_rows, table_RC.shape[1]), dtype=torch.int32, device=device),
        torch.zeros(max_rows, dtype=torch.int64, device=device),
        torch.zeros((shape.num_layers, max_rows), dtype=torch.int64, device=device),
        layers * shape.block_size,
    )


def _create_step(
    group: GroupBlocks,
    table_RC: Tensor,
    inputs: _GroupInputs,
    places_B: Tensor,
    positions_B: Tensor,
) -> PagedStep:
    """One group's part of a step."""
    num_rows, shape = places_B.shape[0], group.cache.shape
    tables_BC, slots_B = inputs.tables_BC[:num_rows], inputs.slots_B[:num_rows]
    block_slots = shape.num_layers * shape.block_size
    gather_tables(
        table_RC, places_B, positions_B, shape.block_size, block_slots, tables_BC, slots_B
    )
    slot_ids = inputs.slot_ids[:, :num_rows]
    torch.add(slots_B, inputs.layer_steps, out=slot_ids)
    longest = tables_BC.shape[1] * shape.block_size
    decodes = plan_decodes(tables_BC, positions_B + 1, longest, group.reach)
    return PagedStep(group.cache, DeviceBatch(slot_ids, group.reach, num_rows, decodes, None))
