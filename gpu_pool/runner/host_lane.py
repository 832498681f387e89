"""Works computed one step at a time from what the host knows: a CPU's lane, and that of ranks.

Must not know plans beyond their works. Shapes: T tokens of the step, D hidden size.
Read next: `drawing`, then `gpu_pool.attention.batch`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from gpu_pool.kernels.cpu.current import computing_with
from gpu_pool.models.network import CausalModel
from gpu_pool.parallel.stage_link import StageLink
from gpu_pool.plan import ForwardResult, ScheduledSequence, SequenceId
from gpu_pool.runner.drawing import draw_tokens, score_prompts, share_logits
from gpu_pool.runner.group_blocks import GroupBlocks
from gpu_pool.runner.lane import Draws
from gpu_pool.runner.sequence_row import SequenceRow
from gpu_pool.runner.step_inputs import compute_hidden
from gpu_pool.runner.work import Work


@dataclass(frozen=True, slots=True)
class SettledOutcome:
    """Works that are over, and their rows have taken in what was drawn."""

    draws: Draws

    def settle(self) -> Draws:
        """What was drawn."""
        return self.draws


@dataclass(frozen=True, slots=True)
class _Undrawn:
    """A sequence for which another rank draws: in which step, and where its tokens end."""

    step: int
    end: int
    row: SequenceRow


class HostLane:
    """Every step is over when it has run."""

    def __init__(self, model: CausalModel, groups: Sequence[GroupBlocks], link: StageLink) -> None:
        """Computes the model's part of this process."""
        self._model = model
        self._groups = groups
        self._link = link
        self._undrawn: dict[SequenceId, _Undrawn] = {}

    def add(self, row: SequenceRow) -> None:
        """Nothing is kept beside the row."""

    def take_blocks(self, row: SequenceRow, item: ScheduledSequence) -> None:
        """Nothing is kept beside the row."""

    def release(self, row: SequenceRow) -> None:
        """What another rank may still draw for the row counts no more."""
        gone = [key for key, undrawn in self._undrawn.items() if undrawn.row is row]
        for sequence_id in gone:
            del self._undrawn[sequence_id]

    def run(self, step: int, works: Sequence[Work]) -> SettledOutcome:
        """Computes works; nothing is drawn on a rank that does not draw."""
        hidden_TD = self._compute_hidden(works)
        if not self._link.place.draws:
            self._hand_on(step, works, hidden_TD)
            return SettledOutcome(Draws())
        return SettledOutcome(draw_at_once(self._model, works, hidden_TD))

    def take_in(self, drawn: ForwardResult) -> None:
        """Learns what another rank has drawn, before the next plan that needs it."""
        for sampled in drawn.sampled:
            undrawn = self._undrawn.get(sampled.sequence_id)
            if undrawn is not None and undrawn.step == drawn.step:  # else another run's
                del self._undrawn[sampled.sequence_id]
                undrawn.row.append(sampled.token_ids)
                undrawn.row.num_computed = min(undrawn.end, len(undrawn.row.token_ids) - 1)

    def _compute_hidden(self, works: Sequence[Work]) -> Tensor:
        """Hidden states `[T, D]`, or what the next stage takes, from what the one before gives."""
        states_TD = self._link.receive(works[-1].end)
        with computing_with(self._groups[0].cache.kernels):
            return compute_hidden(self._model, self._groups, works, states_TD)

    def _hand_on(self, step: int, works: Sequence[Work], hidden_TD: Tensor) -> None:
        """Gives others what they need of a step, and notes what they will draw."""
        if self._link.place.is_last_stage:
            share_logits(works, hidden_TD, self._model.compute_logits)
        else:
            self._link.send(hidden_TD)
        for work in works:
            work.row.num_computed = work.span.end
            if work.item.samples:
                self._undrawn[work.item.sequence_id] = _Undrawn(step, work.span.end, work.row)


def draw_at_once(model: CausalModel, works: Sequence[Work], hidden_TD: Tensor) -> Draws:
    """Scores and draws, waits for that and moves the rows on."""
    prompt_scores = score_prompts(works, hidden_TD, model.compute_logits)
    sampled = draw_tokens(works, hidden_TD, model.compute_logits)
    for work in works:  # what was drawn last has not been computed, nor what no draft foresaw
        work.row.num_computed = min(work.span.end, len(work.row.token_ids) - work.item.samples)
    return Draws(sampled, prompt_scores)
