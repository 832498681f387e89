"""What a device keeps of the sequences that run on it, each at a place of its own.

The newest token, the block tables and how to draw stay on the device from a row's first work to its
release, so that a step is told only which places compute and what changed. One place more than
there are rows is nobody's: what pads a step reads and writes there.
Shapes: R places, C blocks of the longest table. Read next: `decode_program`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from contracts.inference import SamplingParams
from gpu_pool.kernels.device_values import to_device
from gpu_pool.kernels.draw import DrawParameters
from gpu_pool.plan import BlockId
from gpu_pool.runner.sequence_row import SequenceRow
from gpu_pool.sampling.sampler import to_drawn_seed, to_drawn_temperature


class DeviceRows:
    """The places of one model's rows."""

    def __init__(
        self, num_rows: int, table_size: int, scratch_blocks: Sequence[int], device: torch.device
    ) -> None:
        """All places are free. `scratch_blocks`: one per KV group that is no sequence's."""
        self.scratch = num_rows
        """The place that is nobody's."""
        self.newest_R = torch.zeros(num_rows + 1, dtype=torch.int64, device=device)
        self.tables = tuple(
            [
                torch.full((num_rows + 1, table_size), block, dtype=torch.int32, device=device)
                for block in scratch_blocks
            ]
        )
        """`[R, C]` of each KV group, int32."""
        self._parameters = _create_parameters(num_rows + 1, device)
        self._free = list(range(num_rows - 1, -1, -1))
        self._added: list[SequenceRow] = []
        self._given: list[list[tuple[int, int, BlockId]]] = [[] for _ in scratch_blocks]
        """Place, column and block of what tables got since the last step, of each group."""

    def add(self, row: SequenceRow) -> None:
        """Gives a row a place. Raises: `AssertionError` when all are taken."""
        assert self._free, "more rows run than the device has places for"
        row.place = self._free.pop()
        self._added.append(row)

    def release(self, row: SequenceRow) -> None:
        """Frees a row's place; steps under way may still write there, later ones come behind.

        What the device has not been told of the row it is never told: the place may be another's.
        """
        self._free.append(row.place)
        self._added = [added for added in self._added if added is not row]
        for given in self._given:
            given[:] = [entry for entry in given if entry[0] != row.place]

    def note_blocks(self, row: SequenceRow, nums_new: Sequence[int]) -> None:
        """The newest so many blocks of the row's tables are to be told to the device."""
        for given, table, num_new in zip(self._given, row.tables, nums_new, strict=True):
            if num_new:
                first, block_ids = table.list_newest(num_new)
                given += [(row.place, first + i, block) for i, block in enumerate(block_ids)]

    def update(self) -> None:
        """Tells the device what has changed since the last step."""
        for table_RC, given in zip(self.tables, self._given, strict=True):
            if given:
                places, columns, blocks = to_device(
                    list(zip(*given, strict=True)), torch.int64, table_RC.device
                )
                table_RC.index_put_((places, columns), blocks.int())
                given.clear()
        if self._added:
            places = to_device(
                [row.place for row in self._added], torch.int64, self.newest_R.device
            )
            _put(self._parameters, places, [row.sampling for row in self._added])
            self.tell_newest(self._added)
            self._added.clear()

    def tell_newest(self, rows: Sequence[SequenceRow]) -> None:
        """The newest tokens of rows are those that the host knows."""
        if rows:
            asked = [[row.place for row in rows], [row.token_ids[-1] for row in rows]]
            self.set_newest(*to_device(asked, torch.int64, self.newest_R.device))

    def set_newest(self, places: Tensor, token_ids: Tensor) -> None:
        """What was drawn last for the rows at `places`; token 0 stands in where none was."""
        self.newest_R.index_copy_(0, places, token_ids.clamp_min(0))

    def select_parameters(
        self, places: Tensor, positions: Tensor, *, has_filters: bool
    ) -> DrawParameters:
        """How the rows at `places` draw the tokens at `positions`.

        Without `has_filters` none of them has top-k, top-p or min-p.
        """
        of = self._parameters
        return DrawParameters(
            of.temperatures_R.index_select(0, places),
            of.top_ks_R.index_select(0, places),
            of.top_ps_R.index_select(0, places),
            of.min_ps_R.index_select(0, places),
            of.seeds_R.index_select(0, places),
            positions,
            has_filters,
        )


def _create_parameters(num_places: int, device: torch.device) -> DrawParameters:
    """Greedy rows without filters."""

    def fill(value: float, dtype: torch.dtype) -> Tensor:
        return torch.full((num_places,), value, dtype=dtype, device=device)

    return DrawParameters(
        temperatures_R=fill(0, torch.float32),
        top_ks_R=fill(0, torch.int32),
        top_ps_R=fill(1, torch.float32),
        min_ps_R=fill(0, torch.float32),
        seeds_R=fill(0, torch.int64),
        positions_R=fill(0, torch.int64),
    )


def _put(parameters: DrawParameters, places: Tensor, sampling: Sequence[SamplingParams]) -> None:
    """Writes how rows draw to their places."""
    temperatures_R, top_ps_R, min_ps_R = to_device(
        [
            [to_drawn_temperature(s.temperature) for s in sampling],
            [s.top_p for s in sampling],
            [s.min_p for s in sampling],
        ],
        torch.float32,
        places.device,
    )
    top_ks_R, seeds_R = to_device(
        [[s.top_k for s in sampling], [to_drawn_seed(s) for s in sampling]],
        torch.int64,
        places.device,
    )
    parameters.temperatures_R.index_copy_(0, places, temperatures_R)
    parameters.top_ps_R.index_copy_(0, places, top_ps_R)
    parameters.min_ps_R.index_copy_(0, places, min_ps_R)
    parameters.top_ks_R.index_copy_(0, places, top_ks_R.int())
    parameters.seeds_R.index_copy_(0, places, seeds_R)
