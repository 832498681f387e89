"""The sequences that hold blocks, nearly all of them with a row in the executor.

Owns their order and what giving up a place means; must not know who is to give up (`displacement`).
Read next: `planner`.
"""

from bisect import insort
from collections import Counter
from collections.abc import Iterator
from operator import attrgetter

from contracts.ids import AccountId
from gpu_pool.engine.sequence import Sequence
from gpu_pool.engine.waiting_queue import WaitingQueue
from gpu_pool.kv.kv_memory import KvMemory
from gpu_pool.plan import SequenceId

by_precedence = attrgetter("precedence")


class RunningBatch:
    """All running sequences, in order of precedence: the last one gives way first."""

    def __init__(self, kv: KvMemory, waiting: WaitingQueue) -> None:
        """Nobody runs. `waiting` takes those that lose their place."""
        self._kv = kv
        self._waiting = waiting
        self._sequences: list[Sequence] = []
        self._num_by_account: Counter[AccountId] = Counter()
        self._released: list[SequenceId] = []
        self.num_preempted = 0
        """Times that a sequence has given up its place and waits for another."""

    def __len__(self) -> int:
        """Number of sequences."""
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        """The sequences in order."""
        return iter(self._sequences)

    def __getitem__(self, index: int) -> Sequence:
        """The sequence at a place."""
        return self._sequences[index]

    @property
    def has_released(self) -> bool:
        """True while the executor keeps rows that nobody needs."""
        return bool(self._released)

    def count_of(self, account_id: AccountId) -> int:
        """The account's sequences."""
        return self._num_by_account[account_id]

    def start(self, sequence: Sequence) -> None:
        """Takes in a sequence that has its blocks."""
        insort(self._sequences, sequence, key=by_precedence)
        self._num_by_account[sequence.account_id] += 1
        sequence.is_running = True

    def preempt(self, sequence: Sequence) -> None:
        """Takes all blocks from a sequence; it goes on when there is room.

        What it has computed moves to the host if there is room for it there, else it is computed
        again. Tokens that steps in flight sample are sampled again, and are the same.
        """
        self.num_preempted += 1
        if sequence.has_row:
            num_known = len(sequence.reusable_tokens) - 1
            self._kv.swap_out(sequence.table, min(sequence.num_computed_tokens, num_known))
        self.stop(sequence, is_spared=False)
        found = self._kv.find(sequence.table, sequence.reusable_tokens)
        self._waiting.push_front(sequence, found.num_tokens)

    def stop(self, sequence: Sequence, *, is_spared: bool = True) -> None:
        """Frees blocks and row.

        Steps in flight may still write to the blocks. The executor carries out plans in order, so
        that is over before a later plan uses them; the results no longer count.
        """
        self._sequences.remove(sequence)
        self._num_by_account[sequence.account_id] -= 1
        if not self._num_by_account[sequence.account_id]:
            del self._num_by_account[sequence.account_id]
        self._kv.release(sequence.table, is_spared=is_spared)
        if sequence.has_row:
            self._released.append(sequence.sequence_id)
        sequence.is_running = sequence.has_row = False
        sequence.num_runs += 1
        sequence.num_computed_tokens = 0
        sequence.num_pending_tokens = sequence.num_drafts_in_flight = 0

    def take_released(self) -> tuple[SequenceId, ...]:
        """The rows that the executor may forget, forgotten with this."""
        released, self._released = tuple(self._released), []
        return released
