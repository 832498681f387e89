"""Every sequence of the core and where it stands: waiting, running, against its deadline.

Owns who is alive; must not know results or messages. Read next: `planner` (moves sequences between
queue and batch), `scheduler` (lets them come and go).
"""

from collections.abc import Iterator
from typing import Final

from contracts.fair_order import FairOrder
from gpu_pool.engine.adapter_gate import AdapterGate
from gpu_pool.engine.deadlines import Deadlines
from gpu_pool.engine.mask_desk import MaskDesk
from gpu_pool.engine.passage import Passage
from gpu_pool.engine.running_batch import RunningBatch, by_precedence
from gpu_pool.engine.sequence import Sequence
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.engine.waiting_queue import WaitingQueue
from gpu_pool.kv.kv_memory import KvMemory
from gpu_pool.plan import SequenceId


class Books:
    """All live sequences."""

    def __init__(
        self,
        settings: SchedulerSettings,
        kv: KvMemory,
        passage: Passage,
        gate: AdapterGate,
        masks: MaskDesk,
    ) -> None:
        """None."""
        self.passage = passage
        self.gate = gate
        self.masks = masks
        self.waiting = WaitingQueue(settings)
        self.batch = RunningBatch(kv, self.waiting)
        self.fair = FairOrder()
        self.speed = passage.speed
        self.max_running: Final = settings.max_running
        """Sequences that may hold blocks at the same time."""
        self._kv = kv
        self._live: dict[SequenceId, Sequence] = {}
        self._deadlines = Deadlines()

    def __len__(self) -> int:
        """Live sequences."""
        return len(self._live)

    def __iter__(self) -> Iterator[Sequence]:
        """All live sequences, in order of arrival."""
        return iter(self._live.values())

    @property
    def num_ready(self) -> int:
        """Live sequences that do not wait for KV from elsewhere."""
        return len(self._live) - self.passage.landings.num_awaited

    @property
    def has_startable(self) -> bool:
        """One of those runs, or waits for nothing but a place and blocks."""
        return self.num_ready > self.gate.num_held

    @property
    def num_ready_tokens(self) -> int:
        """Tokens that the waiting sequences among them have to have computed."""
        awaited = self.passage.landings.list_awaited()
        num_coming = sum(self._live[one].num_missing_tokens for one in awaited)
        return self.waiting.num_missing_tokens - num_coming

    def find(self, sequence_id: SequenceId) -> Sequence | None:
        """A sequence, while it lives."""
        return self._live.get(sequence_id)

    def enter(self, sequence: Sequence) -> None:
        """Lets a sequence wait. Raises: `PoolSaturated` when the queue is full."""
        num_places = max(0, self.max_running - len(self.batch))
        self.waiting.check_room(sequence, num_places)
        self._live[sequence.sequence_id] = sequence
        self.fair.join(sequence.account_id)
        self.waiting.push(
            sequence, self._kv.find(sequence.table, sequence.reusable_tokens).num_tokens
        )
        self._deadlines.add(sequence)
        self.gate.enter(sequence)
        if sequence.matcher is not None:
            self.masks.ask(sequence)

    def leave(self, sequence: Sequence) -> None:
        """Forgets a sequence, wherever it stands; its blocks are free."""
        del self._live[sequence.sequence_id]
        self._deadlines.remove(sequence)
        self.fair.charge(sequence.account_id, sequence.held_cost)
        self.fair.leave(sequence.account_id)
        self.passage.leave(sequence)
        self.gate.leave(sequence)
        self.masks.forget(sequence)
        if sequence.is_running:
            self.batch.stop(sequence)
        else:
            self.waiting.remove(sequence)
            self._kv.discard_swapped(sequence.table)

    def clear(self) -> None:
        """Forgets all; queue, batch and blocks are void then."""
        self._live.clear()
        self._deadlines.clear()
        self.gate.clear()
        self.masks.clear()

    def list_late(self, now_ms: int) -> list[Sequence]:
        """The sequences whose deadline has passed since the last call."""
        return [self._live[sequence_id] for sequence_id in self._deadlines.pop_missed(now_ms)]

    def check(self) -> None:
        """Asserts that blocks, queue and batch agree; for tests, linear in everything."""
        self._kv.check(
            [sequence.table for sequence in self],
            self.passage.count_held,
        )
        self.gate.check(self)
        self.masks.check(self)
        num_landing = sum(sequence.table.is_landing for sequence in self)
        assert num_landing == self.passage.landings.num_awaited
        running = [sequence for sequence in self if sequence.is_running]
        assert sorted(running, key=by_precedence) == list(self.batch)
        assert len(self._live) == len(running) + len(self.waiting)
        assert self._deadlines.num_kept <= 2 * len(self._live) + 1
        for sequence in self:
            is_empty = not any(group.block_ids for group in sequence.table.groups)
            assert sequence.is_running or is_empty
            assert sequence.num_uncomputed_tokens >= 0
