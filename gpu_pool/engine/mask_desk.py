"""What may come next in constrained answers, or why nothing may: found out beside the steps.

Owns all that matchers do once an answer has begun: they take in its new tokens, and then say what
may follow. A step waits for masks only so long; an answer whose own is not there sits that step
out. While it waits, the core's own thread computes those of accounts whose masks are quick, which
are left to others only where that takes too long: on a busy machine these get little, and threads
that take turns by the tenth of a millisecond hinder each other. Must not know steps, blocks or what
a mask says.
Read next: `mask_lines` (whose turn it is), `token_matcher`, `scheduler` (the caller).
"""

import threading
import time
from collections.abc import Iterable
from operator import attrgetter
from typing import Final

from contracts.errors import ConstraintUnmet, InvariantBroken, ServiceError
from contracts.inference import FinishReason
from gpu_pool.engine.background import create_threads
from gpu_pool.engine.mask_lines import MaskLines
from gpu_pool.engine.sequence import Sequence
from gpu_pool.engine.token_matcher import TokenMatcher
from gpu_pool.plan import SequenceId

OTHERS_SHARE: Final = 1 / 8
"""Of a step that only generates: so long it waits for masks while somebody has all he needs."""
OWN_STEPS: Final = 4
"""So many of these at most where everybody lacks a mask: a step without many of those costs all."""
OWN_PATIENCE_S: Final = 0.05
"""Less than that many where they are long, and one at least: who comes meanwhile is not heard."""
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
        self._lines = MaskLines()
        self._num_runs = 0
        """Threads that take masks until there are none."""
        self._done: dict[Sequence, Found] = {}
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
            if sequence not in self._known:
                self._known.add(sequence)
                self._lines.enter(sequence)
            self._lines.push(sequence)
            if not self._lines.is_quick(sequence.account_id, time.monotonic()):
                self._start_threads()

    def forget(self, sequence: Sequence) -> None:
        """`sequence` is over, whether it ever asked or not."""
        self._awaited.pop(sequence.sequence_id, None)
        with self._changed:
            if sequence not in self._known:
                return
            self._known.remove(sequence)
            self._done.pop(sequence, None)
            self._lines.leave(sequence)

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
        began_s = time.monotonic()
        self._wait(1, began_s + patience_s)
        self._wait(num_accounts, began_s + max(step_s, min(OWN_STEPS * step_s, OWN_PATIENCE_S)))
        with self._changed:
            done, self._done = self._done, {}
            self._start_threads()  # quick ones that are left are computed while the step is
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
            self._lines.check(set(self._awaited))
            assert 0 <= self._num_runs <= self._num_threads
            assert {one.sequence_id for one in self._done} <= self._awaited.keys()

    # -- who computes ----------------------------------------------------------------------------

    def _start_threads(self) -> None:
        """As many as there is work for."""
        if self._threads is not None:
            while self._num_runs < min(self._num_threads, self._lines.num_wanted):
                self._num_runs += 1
                self._threads.submit(self._run)

    def _wait(self, num_accounts: int, end_s: float) -> None:
        """Until fewer accounts than that lack masks, or until then; quick ones are computed here
        meanwhile, in the core's own thread.
        """
        while (now_s := time.monotonic()) < end_s:
            with self._changed:
                if self._lines.num_lacking < num_accounts:
                    return
                sequence = self._lines.take_quick(now_s)
                if sequence is None:
                    self._changed.wait_for(
                        lambda: self._lines.num_lacking < num_accounts, end_s - now_s
                    )
                    return
            self._compute(sequence)

    def _run(self) -> None:
        """Computes masks until there is none for this thread."""
        while True:
            with self._changed:
                sequence = self._lines.take(self._num_threads)
                if sequence is None:
                    self._num_runs -= 1
                    return
            self._compute(sequence)
            with self._changed:
                if self._lines.note_ended(sequence.account_id):
                    self._changed.notify()

    def _compute(self, sequence: Sequence) -> None:
        """Finds something out; of a sequence that is over by then it is of no use."""
        began_ns = time.thread_time_ns()
        found = _look_ahead(sequence)
        cost_us = (time.thread_time_ns() - began_ns) // 1000
        with self._changed:
            self._lines.note(sequence.account_id, cost_us, time.monotonic())
            if sequence in self._known:
                self._done[sequence] = found


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
