"""What may come next in constrained answers, found out beside the core's thread.

Owns whose mask is next: of the account whose masks took least time so far. A step waits for masks
only so long; an answer whose own is not there sits that step out. The last free thread takes no
mask of an account that has one under way, so that nobody's cheap masks stand behind the dear ones
of another. Must not know steps, blocks or what a mask says.
Read next: `token_matcher`, `scheduler` (the caller).
"""

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Iterable
from typing import Final

from contracts.errors import InvariantBroken, ServiceError
from contracts.fair_order import FairOrder
from contracts.ids import AccountId
from gpu_pool.engine.background import create_threads
from gpu_pool.engine.sequence import Sequence
from gpu_pool.plan import SequenceId

OTHERS_SHARE: Final = 1 / 8
"""Of a step that only generates: so long it waits for masks while somebody has all he needs. Where
everybody lacks one, as long as such a step takes."""
LEAST_PATIENCE_S: Final = 0.0005
"""However quick steps are: most masks take a tenth of it."""
FIRST_STEP_S: Final = 0.08
"""What a step is taken for until one has been measured."""

Failed = tuple[Sequence, ServiceError]


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
        self._done: list[tuple[Sequence, bytes | None]] = []
        self._fair = FairOrder()
        self._known: set[SequenceId] = set()
        """Have asked, and are not over."""

    @property
    def num_awaited(self) -> int:
        """Sequences that wait for theirs."""
        return len(self._awaited)

    def ask(self, sequence: Sequence) -> None:
        """Has the mask for the next token of `sequence` computed; until then it has none."""
        sequence.mask = None
        self._awaited[sequence.sequence_id] = sequence
        with self._changed:
            account = sequence.account_id
            if sequence.sequence_id not in self._known:
                self._known.add(sequence.sequence_id)
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
            if sequence.sequence_id not in self._known:
                return
            self._known.remove(sequence.sequence_id)
            self._fair.leave(sequence.account_id)
            if sequence.sequence_id in self._lines.get(sequence.account_id, ()):
                self._leave(sequence)

    def clear(self) -> None:
        """All are over."""
        self._awaited.clear()
        with self._changed:
            self._lines.clear()

    def gather(self, step_s: float, num_accounts: int) -> list[Failed]:
        """Gives masks to the sequences that asked: to all, unless that takes too long.

        `step_s`: what a step takes that only generates, 0 if unknown; `num_accounts`: those that
        have sequences, with a grammar or without. Returns the sequences that will get none.
        """
        if not self._awaited:
            return []
        if self._threads is None:
            self._run()
        step_s = step_s or FIRST_STEP_S
        patience_s = max(LEAST_PATIENCE_S, OTHERS_SHARE * step_s)
        with self._changed:
            if not self._changed.wait_for(lambda: not self._num_lacking, patience_s):
                more_s = step_s - patience_s
                self._changed.wait_for(lambda: self._num_lacking < num_accounts, more_s)
            done, self._done = self._done, []
        failed: list[Failed] = []
        for sequence, mask in done:
            if self._awaited.get(sequence.sequence_id) is not sequence:
                continue
            del self._awaited[sequence.sequence_id]
            sequence.mask = mask
            if mask is None:
                error = InvariantBroken("The schema of the request cannot be followed.")
                failed.append((sequence, error))
        return failed

    def check(self, live: Iterable[Sequence]) -> None:
        """Asserts that everybody who has a grammar has a mask or waits for it; for tests."""
        lacking = [one for one in live if one.matcher is not None and one.mask is None]
        assert {one.sequence_id for one in lacking} == self._awaited.keys()
        with self._changed:
            waiting = [one for line in self._lines.values() for one in line]
            assert all(self._lines.values())
            assert set(waiting) <= self._awaited.keys()

    # -- what the threads do ---------------------------------------------------------------------

    def _run(self) -> None:
        """Computes masks until no more may be taken."""
        sequence = self._take()
        while sequence is not None:
            began_ns = time.thread_time_ns()
            mask = _compute(sequence)
            self._note(sequence, mask, (time.thread_time_ns() - began_ns) // 1000)
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

    def _note(self, sequence: Sequence, mask: bytes | None, cost_us: int) -> None:
        """A mask is there, or will never be."""
        with self._changed:
            account = sequence.account_id
            self._under_way[account] -= 1
            self._fair.correct(account, cost_us)
            self._done.append((sequence, mask))
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


def _compute(sequence: Sequence) -> bytes | None:
    """Its mask; None where the matcher has a defect, which harms one request and not all."""
    assert sequence.matcher is not None
    try:
        return sequence.matcher.fill_mask()
    except BaseException:  # a panic of the library is no `Exception`
        return None
