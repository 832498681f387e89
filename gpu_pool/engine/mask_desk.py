"""What may come next in constrained answers, or why nothing may: found out beside the steps.

Owns all that matchers do once an answer has begun: they take in its new tokens, and then say what
may follow. Also whose turn it is: the account's whose masks took least time so far. A step waits
for masks only so long; an answer whose own is not there sits that step out. The last free thread
takes no mask of an account that has one under way, so that nobody's cheap masks stand behind the
dear ones of another. Must not know steps, blocks or what a mask says.
Read next: `token_matcher`, `scheduler` (the caller).
"""

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Iterable
from operator import attrgetter
from typing import Final

from contracts.errors import ConstraintUnmet, InvariantBroken, ServiceError
from contracts.fair_order import FairOrder
from contracts.ids import AccountId
from contracts.inference import FinishReason
from gpu_pool.engine.background import create_threads
from gpu_pool.engine.sequence import Sequence
from gpu_pool.engine.token_matcher import TokenMatcher
from gpu_pool.plan import SequenceId

OTHERS_SHARE: Final = 1 / 8
"""Of a step that only generates: so long it waits for masks while somebody has all he needs. Where
everybody lacks one, as long as such a step takes."""
LEAST_PATIENCE_S: Final = 0.0005
"""However quick steps are: most masks take a tenth of it."""
FIRST_STEP_S: Final = 0.08
"""What a step is taken for until one has been measured."""

_by_arrival: Final = attrgetter("arrival")

Ended = tuple[Sequence, FinishReason | ServiceError]
Found = bytes | FinishReason | ServiceError
"""What may come next, or why nothing does."""


class MaskDesk:
    """The masks that the answers of one core need for their next tokens."""

    def __init__(self, num_threads: int) -> None:
        """Nobody waits. Without threads masks are computed where they are waited for, all."""
        self._num_threads = num_threads
        self._threads = create_threads(num_threads, "masks") if num_threads else None
        self._awaited: dict[SequenceId, Sequence] = {}
        """Asked for, and not given yet."""
        self._changed = threading.Condition()
        """Guards what follows, which the threads change."""
        self._lines: dict[AccountId, OrderedDict[SequenceId, Sequence]] = {}
        self._under_way: Counter[AccountId] = Counter()
        self._num_runs = 0
        """Threads that take masks until there are none."""
        self._done: dict[Sequence, Found] = {}
        self._fair = FairOrder()
        self._known: set[Sequence] = set()
        """Have asked, and are not over."""

    @property
    def num_awaited(self) -> int:
        """Sequences that wait for theirs."""
        return len(self._awaited)

    def ask(self, sequence: Sequence) -> None:
        """Has its tokens taken in that are new, and the mask for the next one computed. Until then
        `sequence` has none, and its matcher is nobody else's to touch.
        """
        sequence.mask = None
        self._awaited[sequence.sequence_id] = sequence
        with self._changed:
            account = sequence.account_id
            if sequence not in self._known:
                self._known.add(sequence)
                self._fair.join(account)
            self._lines.setdefault(account, OrderedDict())[sequence.sequence_id] = sequence
            num_wanted = self._under_way.total() + sum(map(len, self._lines.values()))
            if self._threads is not None and self._num_runs < min(self._num_threads, num_wanted):
                self._num_runs += 1
                self._threads.submit(self._run)

    def forget(self, sequence: Sequence) -> None:
        """`sequence` is over, whether it ever asked or not."""
        self._awaited.pop(sequence.sequence_id, None)
        with self._changed:
            if sequence not in self._known:
                return
            self._known.remove(sequence)
            self._done.pop(sequence, None)
            self._fair.leave(sequence.account_id)
            if sequence.sequence_id in self._lines.get(sequence.account_id, ()):
                self._leave(sequence)

    def clear(self) -> None:
        """All are over."""
        self._awaited.clear()
        with self._changed:
            self._lines.clear()
            self._known.clear()
            self._done.clear()

    def gather(self, step_s: float, num_accounts: int) -> list[Ended]:
        """Gives masks to the sequences that asked: to all, unless that takes too long.

        `step_s`: what a step takes that only generates, 0 if unknown; `num_accounts`: those that
        have sequences, with a grammar or without. Returns the sequences that are to get none.
        """
        if not self._awaited:
            return []
        if self._threads is None:
            self._num_runs = 1
            self._run()
        step_s = step_s or FIRST_STEP_S
        patience_s = max(LEAST_PATIENCE_S, OTHERS_SHARE * step_s)
        with self._changed:
            if not self._changed.wait_for(lambda: not self._num_lacking, patience_s):
                more_s = step_s - patience_s
                self._changed.wait_for(lambda: self._num_lacking < num_accounts, more_s)
            done, self._done = self._done, {}
        ended: list[Ended] = []
        for sequence in sorted(done, key=_by_arrival):  # not in the order of chance
            found = done[sequence]
            del self._awaited[sequence.sequence_id]
            sequence.num_matched_tokens = len(sequence.token_ids)
            if isinstance(found, bytes):
                sequence.mask = found
            else:
                ended.append((sequence, found))
        return ended

    def check(self, live: Iterable[Sequence]) -> None:
        """Asserts that everybody who has a grammar has a mask or waits for it; for tests."""
        lacking = [one for one in live if one.matcher is not None and one.mask is None]
        assert {one.sequence_id for one in lacking} == self._awaited.keys()
        with self._changed:
            waiting = [one for line in self._lines.values() for one in line]
            assert all(self._lines.values())
            assert 0 <= self._num_runs <= self._num_threads
            assert set(waiting) <= self._awaited.keys()
            assert {one.sequence_id for one in self._done} <= self._awaited.keys()

    # -- what the threads do ---------------------------------------------------------------------

    def _run(self) -> None:
        """Computes masks until no more may be taken."""
        sequence = self._take()
        while sequence is not None:
            began_ns = time.thread_time_ns()
            found = _look_ahead(sequence)
            self._note(sequence, found, (time.thread_time_ns() - began_ns) // 1000)
            sequence = self._take()

    def _take(self) -> Sequence | None:
        """Whose mask is next; None where this thread is needed no more."""
        with self._changed:
            is_last = self._under_way.total() == self._num_threads - 1 > 0
            accounts = [one for one in self._lines if not (is_last and self._under_way[one])]
            account = min(accounts, key=self._fair.read, default=None)
            if account is None:
                self._num_runs -= 1
                return None
            sequence = next(iter(self._lines[account].values()))
            self._leave(sequence)
            self._under_way[account] += 1
            return sequence

    def _note(self, sequence: Sequence, found: Found, cost_us: int) -> None:
        """Something has been found out; of a sequence that is over it is of no use."""
        with self._changed:
            account = sequence.account_id
            self._under_way[account] -= 1
            self._fair.correct(account, cost_us)
            if sequence in self._known:
                self._done[sequence] = found
            if not self._under_way[account]:
                del self._under_way[account]
                if account not in self._lines:
                    self._changed.notify()

    @property
    def _num_lacking(self) -> int:
        """Accounts with masks that are being computed, or wait for that."""
        return len(self._lines.keys() | self._under_way.keys())

    def _leave(self, sequence: Sequence) -> None:
        """`sequence` stands in line no more."""
        line = self._lines[sequence.account_id]
        del line[sequence.sequence_id]
        if not line:
            del self._lines[sequence.account_id]


def _look_ahead(sequence: Sequence) -> Found:
    """What may come next; a defect of the matcher harms one request and not all."""
    assert sequence.matcher is not None
    try:
        return _follow(sequence, sequence.matcher)
    except BaseException:  # a panic of the library is no `Exception`
        return InvariantBroken("The schema of the request cannot be followed.")


def _follow(sequence: Sequence, matcher: TokenMatcher) -> Found:
    """Takes `matcher` behind the newest token and asks it what may come next."""
    for token_id in sequence.token_ids[sequence.num_matched_tokens :]:
        is_right = matcher.accept(token_id)
        if matcher.has_given_up:
            return ConstraintUnmet("The answer's schema cannot be followed to an end.")
        if not is_right:
            return InvariantBroken("The answer does not match its schema.")
    if matcher.is_finished:
        return FinishReason.STOP
    if sequence.num_completion_tokens == sequence.max_tokens:
        return FinishReason.LENGTH
    mask = matcher.fill_mask()
    if matcher.has_given_up:
        return ConstraintUnmet("The answer's schema cannot be followed to an end.")
    return mask
