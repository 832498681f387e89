"""The part of one sequence in a step, as the tensor side sees it. Read next: `model_runner`."""

import msgspec

from gpu_pool.attention.batch import Span
from gpu_pool.plan import ScheduledSequence
from gpu_pool.runner.sequence_row import SequenceRow


class Work(msgspec.Struct, frozen=True, eq=False):
    """`order` is its place in the plan, `first` its first token's among all tokens of the step."""

    order: int
    first: int
    item: ScheduledSequence
    row: SequenceRow
    spans: tuple[Span, ...]
    """The same tokens in each KV group."""

    @property
    def span(self) -> Span:
        """The tokens, whichever the group."""
        return self.spans[0]

    @property
    def end(self) -> int:
        """Behind its last token in the step."""
        return self.first + self.span.num_tokens
