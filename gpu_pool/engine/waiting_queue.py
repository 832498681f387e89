"""Sequences that wait for blocks and a place in the batch.

Owns the lines, one per priority and account, each in order of arrival, and how much stands in them.
Must not know which account is next (`contracts.fair_order`) nor blocks. Read next: `planner`.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterator

from contracts.errors import PoolSaturated
from contracts.ids import AccountId
from gpu_pool.engine.sequence import Sequence
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.plan import SequenceId

LineKey = tuple[int, AccountId]
"""Priority and account."""


class WaitingQueue:
    """All lines; every call but `list_lines` is constant in the number of sequences."""

    def __init__(self, settings: SchedulerSettings) -> None:
        """Nobody waits."""
        self._settings = settings
        self._lines: dict[LineKey, OrderedDict[SequenceId, Sequence]] = {}
        self._num_waiting = 0
        self._num_tokens = 0
        self._num_missing_tokens = 0
        self._num_by_account: Counter[AccountId] = Counter()
        self._tokens_by_account: Counter[AccountId] = Counter()

    def __len__(self) -> int:
        """Number of sequences."""
        return self._num_waiting

    @property
    def num_tokens(self) -> int:
        """Tokens of all of them."""
        return self._num_tokens

    @property
    def num_missing_tokens(self) -> int:
        """Those of them that were to be computed when their sequences came."""
        return self._num_missing_tokens

    def check_room(self, sequence: Sequence, num_places: int) -> None:
        """Raises: `PoolSaturated` when `sequence` may not join.

        `num_places` sequences more than settings say may wait, because they can start at once.
        """
        limits, account = self._settings, sequence.account_id
        num_tokens = len(sequence.token_ids)
        if self._num_waiting >= limits.max_waiting + num_places:
            raise PoolSaturated("The model's queue is full.")
        if self._num_waiting and self._num_tokens + num_tokens > limits.max_waiting_tokens:
            raise PoolSaturated("The prompts in the model's queue are too long for one more.")
        num_of_account = self._num_by_account[account]
        if num_of_account >= limits.max_account_waiting + num_places:
            raise PoolSaturated("This account has too many requests in the model's queue.")
        num_tokens += self._tokens_by_account[account]
        if num_of_account and num_tokens > limits.max_account_waiting_tokens:
            raise PoolSaturated("This account's prompts in the model's queue are too long.")

    def push(self, sequence: Sequence, num_found: int = 0) -> None:
        """Adds an arrival at the end of its line; the KV memory has `num_found` of its tokens."""
        key = (sequence.priority, sequence.account_id)
        self._lines.setdefault(key, OrderedDict())[sequence.sequence_id] = sequence
        sequence.num_queued_tokens = len(sequence.token_ids)
        sequence.num_missing_tokens = sequence.num_queued_tokens - num_found
        self._count(sequence, 1)

    def push_front(self, sequence: Sequence, num_found: int = 0) -> None:
        """Puts a preempted sequence back where it came from: it arrived before all that wait."""
        self.push(sequence, num_found)
        line = self._lines[sequence.priority, sequence.account_id]
        line.move_to_end(sequence.sequence_id, last=False)

    def list_lines(self) -> list[LineKey]:
        """The lines that somebody stands in."""
        return list(self._lines)

    def walk(self, key: LineKey) -> Iterator[Sequence]:
        """The sequences of a line in order; ends when the line changes."""
        return iter(self._lines[key].values() if key in self._lines else ())

    def remove(self, sequence: Sequence) -> None:
        """Takes out `sequence`, wherever it stands."""
        key = (sequence.priority, sequence.account_id)
        del self._lines[key][sequence.sequence_id]
        if not self._lines[key]:
            del self._lines[key]
        self._count(sequence, -1)

    def _count(self, sequence: Sequence, sign: int) -> None:
        """Keeps the numbers."""
        account, num_tokens = sequence.account_id, sequence.num_queued_tokens
        self._num_waiting += sign
        self._num_tokens += sign * num_tokens
        self._num_missing_tokens += sign * sequence.num_missing_tokens
        self._num_by_account[account] += sign
        self._tokens_by_account[account] += sign * num_tokens
        if not self._num_by_account[account]:
            del self._num_by_account[account], self._tokens_by_account[account]
