"""Steps that were begun and whose tokens are on their way to the host.

Must not know how they are computed. Read next: `device_lane`.
"""

from collections import deque
from collections.abc import Sequence

from gpu_pool.plan import SampledTokens
from gpu_pool.runner.drawn_tokens import Fetched
from gpu_pool.runner.lane import Draws
from gpu_pool.runner.work import Work


class StepsUnderWay:
    """The steps of one lane, which settle in the order in which they were begun."""

    def __init__(self) -> None:
        """None is under way."""
        self._steps: deque[DrawnOutcome] = deque()

    def __len__(self) -> int:
        """Steps that have not been settled."""
        return len(self._steps)

    def add(self, drawing: Sequence[Work], drawn: Fetched) -> "DrawnOutcome":
        """A step in which `drawing` draw the tokens of `drawn`, one each."""
        outcome = DrawnOutcome(self, drawing, drawn)
        self._steps.append(outcome)
        return outcome

    def settle(self, last: "DrawnOutcome | None" = None) -> None:
        """Settles all steps, or those up to `last`."""
        while self._steps and (last is None or last.draws is None):
            self._steps.popleft().take_in()


class DrawnOutcome:
    """Works whose rows know of their tokens once it has settled."""

    def __init__(self, steps: StepsUnderWay, drawing: Sequence[Work], drawn: Fetched) -> None:
        """Takes what `StepsUnderWay.add` has."""
        self._steps = steps
        self._drawing = drawing
        self._drawn = drawn
        self.draws: Draws | None = None
        """None until it has settled."""

    def settle(self) -> Draws:
        """What was drawn, once those before have settled."""
        self._steps.settle(self)
        assert self.draws is not None, "an outcome settles once"
        return self.draws

    def take_in(self) -> None:
        """Waits for the tokens and gives them to the rows."""
        answers: dict[int, SampledTokens] = {}
        token_ids, scores = self._drawn.read()
        for row, (work, token_id) in enumerate(zip(self._drawing, token_ids, strict=True)):
            work.row.num_pending -= 1
            work.row.append((token_id,), is_counted=True)
            its_scores = (scores[row],) if row in scores else ()
            answers[work.order] = SampledTokens(work.item.sequence_id, (token_id,), its_scores)
        self.draws = Draws(tuple(answers[order] for order in sorted(answers)))
