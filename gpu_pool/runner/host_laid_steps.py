"""Steps that the host lays out, over rows of which the device may know more than it.

Prompts and whatever is mixed with them. Ids that the host does not know yet are filled in on the
device. Shapes: T tokens of the step, D hidden size, B rows that draw, V vocabulary.
Read next: `step_inputs`, `device_rows`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from gpu_pool.kernels.device_values import to_device
from gpu_pool.kernels.draw import DrawParameters, draw
from gpu_pool.models.network import CausalModel
from gpu_pool.runner.device_rows import DeviceRows
from gpu_pool.runner.drawing import select_drawn
from gpu_pool.runner.drawn_tokens import (
    Drawn,
    draws_plainly,
    have_filters,
    list_scored,
    score_drawn,
)
from gpu_pool.runner.group_blocks import GroupBlocks
from gpu_pool.runner.step_inputs import compute_hidden
from gpu_pool.runner.work import Work
from gpu_pool.sampling.sampler import adjust_logits


class HostLaidSteps:
    """Such steps of one model."""

    def __init__(self, model: CausalModel, groups: Sequence[GroupBlocks], rows: DeviceRows) -> None:
        """Computes over `rows`, which are told of what is drawn."""
        self._model = model
        self._groups = groups
        self._rows = rows
        self._device = rows.newest_R.device

    def compute_hidden(self, works: Sequence[Work]) -> Tensor:
        """Hidden states `[T, D]` of all tokens of the step."""
        unknown = [work for work in works if work.span.end > _count_known(work)]
        if not unknown:
            return compute_hidden(self._model, self._groups, works)
        assert all(work.span.num_tokens == 1 for work in unknown), "only one token is unknown"
        index, places = to_device(
            [[work.first for work in unknown], [work.row.place for work in unknown]],
            torch.int64,
            self._device,
        )

        def complete(token_ids_T: Tensor) -> None:
            token_ids_T.index_copy_(0, index, self._rows.newest_R.index_select(0, places))

        return compute_hidden(self._model, self._groups, works, complete=complete)

    def draw(self, works: Sequence[Work], drawing: Sequence[Work]) -> Drawn:
        """The tokens that `drawing` draw; they are their newest from now on."""
        hidden_TD = self.compute_hidden(works)
        if not drawing:
            return Drawn(self._rows.newest_R[:0].clone())
        places_B, positions_B = to_device(
            [[work.row.place for work in drawing], [work.span.end for work in drawing]],
            torch.int64,
            self._device,
        )
        logits_BV = self._model.compute_logits(select_drawn(drawing, hidden_TD))
        parameters = self._rows.select_parameters(
            places_B, positions_B, has_filters=have_filters(drawing)
        )
        if all(draws_plainly(work) for work in drawing):
            drawn = Drawn(draw(logits_BV, parameters))
        else:
            drawn = self._draw_adjusted(drawing, logits_BV, parameters)
        self._rows.set_newest(places_B, drawn.token_ids_B)
        return drawn

    def _draw_adjusted(
        self, drawing: Sequence[Work], logits_BV: Tensor, parameters: DrawParameters
    ) -> Drawn:
        """Draws behind all that changes logits, with scores; `logits_BV` changes."""
        scored = list_scored(drawing)
        rows_S = to_device(scored, torch.int64, self._device)
        kept_SV = logits_BV.index_select(0, rows_S)  # what follows changes them
        rows = [work.row.to_sampling_rows((), work.item.allowed_tokens)[0] for work in drawing]
        adjust_logits(logits_BV, rows)
        drawn_B = draw(logits_BV, parameters)
        for row, work in enumerate(drawing):
            work.row.count_drawn(drawn_B[row : row + 1].clamp_min(0))
        scores = score_drawn(drawing, scored, kept_SV, drawn_B.index_select(0, rows_S))
        return Drawn(drawn_B, scores)


def _count_known(work: Work) -> int:
    """Tokens of the work's sequence that the host knows, guesses included."""
    return len(work.row.token_ids) + len(work.item.draft_token_ids)
