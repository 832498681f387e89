"""Works computed from what a GPU keeps of rows, the next while those before are under way.

A step in which every row computes one token, without an adapter, and draws it plainly runs from
`decode_graphs`. Others are laid out on the host; ids that the host does not know yet are filled in
on the device. Works that draw behind guesses, or whose prompts are scored, wait for their step: how
far they got comes by way of the host.
Must not know plans beyond their works. Shapes: T tokens of the step, B rows that draw.
Read next: `device_rows`, `decode_graphs`.
"""

from collections.abc import Sequence

from gpu_pool.models.network import CausalModel
from gpu_pool.plan import ForwardResult, ScheduledSequence
from gpu_pool.runner.decode_graphs import DecodeGraphs
from gpu_pool.runner.device_rows import DeviceRows
from gpu_pool.runner.drawn_tokens import Drawn, draws_plainly, have_filters
from gpu_pool.runner.host_laid_steps import HostLaidSteps
from gpu_pool.runner.host_lane import SettledOutcome, draw_at_once
from gpu_pool.runner.lane import Outcome
from gpu_pool.runner.sequence_row import SequenceRow
from gpu_pool.runner.transfers import Downloads
from gpu_pool.runner.under_way import StepsUnderWay
from gpu_pool.runner.work import Work


class DeviceLane:
    """Several steps may be under way; they settle in order."""

    def __init__(
        self,
        model: CausalModel,
        steps: HostLaidSteps,
        rows: DeviceRows,
        graphs: DecodeGraphs,
    ) -> None:
        """Takes what `worker.lanes` built."""
        self._model = model
        self._steps = steps
        self._rows = rows
        self._graphs = graphs
        self._device = rows.newest_R.device
        self._downloads = Downloads(self._device)
        self._under_way = StepsUnderWay()
        self._num_adapted = 0
        """Rows with an adapter: what is recorded knows of none."""

    def add(self, row: SequenceRow) -> None:
        """Gives the row a place on the device."""
        self._rows.add(row)
        self._num_adapted += row.adapter is not None

    def take_blocks(self, row: SequenceRow, item: ScheduledSequence) -> None:
        """Notes what the device has to be told."""
        self._rows.note_blocks(row, [len(block_ids) for block_ids in item.new_block_ids])

    def release(self, row: SequenceRow) -> None:
        """Gives the row's place to others."""
        self._rows.release(row)
        self._num_adapted -= row.adapter is not None

    def take_in(self, drawn: ForwardResult) -> None:
        """Never called: this lane computes the whole model."""
        raise AssertionError("there is no other rank")

    def run(self, step: int, works: Sequence[Work]) -> Outcome:
        """Begins works; returns before they are over unless one of them needs the host."""
        del step
        self._rows.update()
        drawing = [work for work in works if work.item.samples]
        if any(_needs_host(work) for work in works):
            return self._run_at_once(works)
        is_plain = len(drawing) == works[-1].end and all(draws_plainly(work) for work in works)
        if self._num_adapted:
            is_plain = is_plain and all(work.row.adapter is None for work in works)
        if is_plain and len(works) <= self._graphs.max_rows:
            places = [work.row.place for work in works]
            positions = [work.span.start for work in works]
            drawn_B = self._graphs.run(places, positions, has_filters=have_filters(works))
            drawn = Drawn(drawn_B.clone())  # the next step draws to the same place
        else:
            drawn = self._steps.draw(works, drawing)
        for work in works:
            work.row.num_computed = work.span.end
            work.row.num_pending += work.item.samples
        return self._under_way.add(drawing, drawn.fetch(self._downloads))

    def _run_at_once(self, works: Sequence[Work]) -> SettledOutcome:
        """Computes and draws by way of the host, behind all that is under way."""
        self._under_way.settle()
        draws = draw_at_once(self._model, works, self._steps.compute_hidden(works))
        self._rows.tell_newest([work.row for work in works if work.item.samples])
        return SettledOutcome(draws)


def _needs_host(work: Work) -> bool:
    """How far the work's sequence got depends on more than the token that is drawn."""
    if work.item.draft_token_ids:
        return True
    is_scored = work.row.sampling.num_prompt_logprobs is not None
    return is_scored and work.span.start < work.row.num_prompt_tokens
