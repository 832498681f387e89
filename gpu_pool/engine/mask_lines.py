"""Whose mask is next: of the highest priority, and then of the account whose masks took least time.

Owns the order, and whose masks are quick enough for the core's own thread. Pure: times are handed
in, and one caller at a time. Must not know threads or what a mask says. Read next: `mask_desk`.
"""

from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Final

from contracts.fair_order import FairOrder
from contracts.ids import AccountId
from gpu_pool.engine.sequence import Sequence
from gpu_pool.engine.waiting_queue import LineKey
from gpu_pool.plan import SequenceId

DEAR_US: Final = 1000
"""A mask that takes so long is dear; most take a tenth of it."""
DEAR_S: Final = 10.0
"""So long after a dear mask its account counts as one whose masks are dear."""
PROOF: Final = 16
"""Masks after which an account counts as one whose masks are quick, unless one was dear."""
_MOST_REMEMBERED: Final = 4096
"""Accounts whose habits are known; beyond that all prove themselves again."""


@dataclass(slots=True)
class _Habit:
    """What an account's masks have been like."""

    num_quick: int = 0
    dear_until_s: float = float("-inf")


class MaskLines:
    """Sequences that wait for their masks, and the accounts whose masks are being computed."""

    def __init__(self) -> None:
        """Nobody."""
        self._lines: dict[LineKey, OrderedDict[SequenceId, Sequence]] = {}
        self._under_way: Counter[AccountId] = Counter()
        """Masks that threads compute."""
        self._fair = FairOrder()
        self._habits: dict[AccountId, _Habit] = {}

    def __contains__(self, sequence: Sequence) -> bool:
        """True while it stands in line."""
        return sequence.sequence_id in self._lines.get(_find_line(sequence), ())

    @property
    def num_wanted(self) -> int:
        """Masks that are being computed, or wait for that."""
        return self._under_way.total() + sum(map(len, self._lines.values()))

    @property
    def num_lacking(self) -> int:
        """Accounts with such masks."""
        return len({account for _, account in self._lines} | self._under_way.keys())

    def enter(self, sequence: Sequence) -> None:
        """`sequence` will need masks, one after the other."""
        self._fair.join(sequence.account_id)

    def leave(self, sequence: Sequence) -> None:
        """It needs no more."""
        self._fair.leave(sequence.account_id)
        if sequence in self:
            self._pop(_find_line(sequence), sequence)

    def push(self, sequence: Sequence) -> None:
        """It needs one now."""
        self._lines.setdefault(_find_line(sequence), OrderedDict())[sequence.sequence_id] = sequence

    def clear(self) -> None:
        """Nobody needs any."""
        self._lines.clear()

    def take(self, num_threads: int) -> Sequence | None:
        """The next one, for one of so many threads; None where none is for it. The last free one
        gets nothing of an account that has a mask under way.
        """
        is_last = self._under_way.total() == num_threads - 1 > 0
        keys = [key for key in self._lines if not (is_last and self._under_way[key[1]])]
        sequence = self._pop_first(keys)
        if sequence is not None:
            self._under_way[sequence.account_id] += 1
        return sequence

    def take_quick(self, now_s: float) -> Sequence | None:
        """The next one, for the core's own thread; None where no account in line is quick. One may
        still turn out to be dear: the next of its account is a while away then.
        """
        return self._pop_first([key for key in self._lines if self.is_quick(key[1], now_s)])

    def is_quick(self, account_id: AccountId, now_s: float) -> bool:
        """True when the account's next mask will be quick, by all that is known."""
        habit = self._habits.get(account_id)
        return habit is not None and habit.num_quick >= PROOF and habit.dear_until_s <= now_s

    def note(self, account_id: AccountId, cost_us: int, now_s: float) -> None:
        """A mask of the account has been computed."""
        self._fair.correct(account_id, cost_us)
        if len(self._habits) >= _MOST_REMEMBERED:
            self._habits.clear()
        habit = self._habits.setdefault(account_id, _Habit())
        if cost_us < DEAR_US:
            habit.num_quick += 1
        else:
            habit.num_quick, habit.dear_until_s = 0, now_s + DEAR_S

    def note_ended(self, account_id: AccountId) -> bool:
        """A thread is done with a mask of the account; True when it lacks none any more."""
        self._under_way[account_id] -= 1
        if self._under_way[account_id]:
            return False
        del self._under_way[account_id]
        return all(account != account_id for _, account in self._lines)

    def check(self, awaited: set[SequenceId]) -> None:
        """Asserts that who stands in line is awaited; for tests."""
        assert all(self._lines.values())
        assert {one for line in self._lines.values() for one in line} <= awaited

    def _pop_first(self, keys: list[LineKey]) -> Sequence | None:
        """The first one of the line among `keys` whose turn it is."""
        key = min(keys, key=self._rank, default=None)
        if key is None:
            return None
        sequence = next(iter(self._lines[key].values()))
        self._pop(key, sequence)
        return sequence

    def _rank(self, key: LineKey) -> tuple[int, int]:
        """Sorts lines into the order in which they are served."""
        priority, account_id = key
        return (-priority, self._fair.read(account_id))

    def _pop(self, key: LineKey, sequence: Sequence) -> None:
        """`sequence` stands in line no more."""
        line = self._lines[key]
        del line[sequence.sequence_id]
        if not line:
            del self._lines[key]


def _find_line(sequence: Sequence) -> LineKey:
    """The line that it belongs to."""
    return (sequence.priority, sequence.account_id)
