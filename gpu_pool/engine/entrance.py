"""The way from a request to its sequence: at once, or when its grammar has been made a matcher.

Owns what is asked first; must not know queues or blocks. Read next: `admission`, `grammar_desk`,
`scheduler` (the caller).
"""

from collections.abc import Callable
from typing import Final

from contracts.errors import ServiceError
from gpu_pool.engine.admission import Admission
from gpu_pool.engine.grammar_desk import GrammarDesk
from gpu_pool.engine.matcher_maker import InlineMaker, MatcherMaker
from gpu_pool.engine.messages import AddSequence
from gpu_pool.engine.sequence import Sequence
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.engine.token_matcher import TokenMatcher, refuse_grammars
from gpu_pool.kv.kv_memory import KvMemory
from gpu_pool.plan import ExecutorInfo, SequenceId

Entered = tuple[SequenceId, Sequence | ServiceError]


class Entrance:
    """All requests that are no sequences yet."""

    def __init__(self, admission: Admission, desk: GrammarDesk) -> None:
        """Nobody is there."""
        self._admission = admission
        self._free: list[AddSequence] = []
        """Those without a grammar that have come since the last look."""
        self.desk: Final = desk
        """Where the others wait."""

    def take(self, request: AddSequence) -> None:
        """Lets `request` in. Raises: `PoolSaturated` where it may not wait for its matcher."""
        if request.grammar is None:
            self._free.append(request)
        else:
            self.desk.take(request)

    def poll(self) -> list[Entered]:
        """The sequences of requests that wait no more, or why they get none."""
        free, self._free = self._free, []
        entered = [(request.sequence_id, self._admit(request, None)) for request in free]
        for request, outcome in self.desk.poll():
            is_refused = isinstance(outcome, ServiceError)
            made = outcome if is_refused else self._admit(request, outcome)
            entered.append((request.sequence_id, made))
        return entered

    def _admit(self, request: AddSequence, matcher: TokenMatcher | None) -> Sequence | ServiceError:
        """Its sequence."""
        try:
            return self._admission.admit(request, matcher)
        except ServiceError as error:
            return error


def create_entrance(
    settings: SchedulerSettings,
    info: ExecutorInfo,
    kv: KvMemory,
    draw_seed: Callable[[], int],
    maker: MatcherMaker | None,
) -> Entrance:
    """That of a core; without a `maker` no grammar is taken."""
    desk = GrammarDesk(settings, maker or InlineMaker(refuse_grammars))
    return Entrance(Admission(settings, info, kv, draw_seed), desk)
