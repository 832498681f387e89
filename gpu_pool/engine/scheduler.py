"""Decides what every step computes, and keeps the books of sequences and blocks.

Pure: time and seeds are handed in, effects are plans and messages. One token budget per step:
decode first, then the prompts that are under way, then those that wait. Sequences run in order of
precedence; when blocks run out the last of them gives its own back and is computed again later, so
the first one always gets on and nothing can turn in circles.
Must not know the executor or the transport. Read next: `core`, which drives it.
"""

import math
from bisect import insort
from collections import deque
from collections.abc import Callable
from operator import attrgetter

import msgspec

from contracts.errors import (
    DeadlineExceeded,
    InvariantBroken,
    PoolSaturated,
    ServiceError,
)
from contracts.inference import FinishReason
from gpu_pool.engine.admission import check_admission
from gpu_pool.engine.messages import AddSequence, CoreLoad, StepOutput
from gpu_pool.engine.outbox import Outbox
from gpu_pool.engine.sequence import Sequence
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.engine.step import Step
from gpu_pool.engine.waiting_queue import WaitingQueue
from gpu_pool.kv.block_pool import BlockPool
from gpu_pool.kv.prefix_cache import PrefixIndex
from gpu_pool.plan import (
    BlockId,
    ExecutorInfo,
    ForwardPlan,
    ForwardResult,
    SequenceId,
)

_by_precedence = attrgetter("precedence")


class Scheduler:
    """All sequences of one engine core."""

    def __init__(
        self,
        settings: SchedulerSettings,
        info: ExecutorInfo,
        pool: BlockPool,
        cache: PrefixIndex,
        draw_seed: Callable[[], int],
    ) -> None:
        """`pool` has the blocks `info` declares; `draw_seed` serves requests that bring no seed."""
        self._settings = settings
        self._info = info
        self._pool = pool
        self._cache = cache
        self._draw_seed = draw_seed
        self._sequences: dict[SequenceId, Sequence] = {}
        self._running: list[Sequence] = []
        """In order of precedence: the last one gives way first."""
        self._waiting = WaitingQueue()
        self._impatient: list[Sequence] = []
        """Arrived since the last step with `reject_if_busy`."""
        self._next_deadline_unix_ms = math.inf
        """No live sequence has an earlier one."""
        self._released: list[SequenceId] = []
        self._in_flight: deque[Step] = deque()
        self._num_steps = 0
        self._num_arrivals = 0
        self._eos_token_ids = frozenset(info.eos_token_ids)
        self._outbox = Outbox()

    @property
    def num_in_flight(self) -> int:
        """Plans made whose results have not been taken in."""
        return len(self._in_flight)

    @property
    def has_work(self) -> bool:
        """False when nothing happens until the next message."""
        return bool(self._sequences or self._in_flight)

    @property
    def load(self) -> CoreLoad:
        """How busy the core is now."""
        pool = self._pool
        return CoreLoad(len(self._running), len(self._waiting), pool.num_blocks, pool.num_free)

    # -- what the server asks --------------------------------------------------------------------

    def add(self, request: AddSequence) -> None:
        """Lets a sequence wait for the next step, or answers why not."""
        known = self._sequences.get(request.sequence_id)
        if known is not None:  # one id, two streams: neither may get the other's answer
            self._finish(known, InvariantBroken("The node used the id of the request twice."))
            return
        try:
            max_tokens = check_admission(request, self._info)
            if len(self._sequences) >= self._settings.max_running + self._settings.max_waiting:
                raise PoolSaturated("The model's queue is full.")
        except ServiceError as error:
            self._outbox.add_failed(request.sequence_id, 0, error)
            return
        sequence = self._create_sequence(request, max_tokens)
        self._sequences[sequence.sequence_id] = sequence
        self._waiting.push(sequence)
        if sequence.reject_if_busy:
            self._impatient.append(sequence)
        if sequence.deadline_unix_ms < self._next_deadline_unix_ms:
            self._next_deadline_unix_ms = sequence.deadline_unix_ms

    def abort(self, sequence_id: SequenceId) -> None:
        """Ends a sequence now; its blocks are free and its row goes with the next plan."""
        sequence = self._sequences.get(sequence_id)
        if sequence is not None:
            self._finish(sequence, FinishReason.ABORTED)

    def fail_all(self, error: ServiceError) -> None:
        """Answers every sequence with `error`. The books are void then: nothing may follow."""
        for sequence in self._sequences.values():
            num_tokens = sequence.num_completion_tokens
            self._outbox.add_failed(sequence.sequence_id, num_tokens, error)
        self._sequences.clear()

    def take_output(self) -> StepOutput | None:
        """What the server has to be told since the last call; None when nothing."""
        return self._outbox.take(self.load)

    # -- one step --------------------------------------------------------------------------------

    def schedule(self, now_unix_ms: int) -> ForwardPlan | None:
        """The next step, to be carried out after those in flight; None when there is none.

        At most `info.max_in_flight` plans may wait for their results.
        """
        self._expire(now_unix_ms)
        step = Step(self._num_steps, len(self._info.kv_groups))
        self._schedule_decodes(step)
        prefills = [s for s in self._running if s.num_uncomputed_tokens > 1]
        cap = self._chunk_cap(len(prefills) + len(self._waiting))
        budget = self._settings.max_batch_tokens - len(step.work)
        for sequence in prefills:
            budget -= self._schedule_chunk(step, sequence, (), min(cap, budget))
        self._start_waiting(step, cap, budget)
        self._refuse_impatient()
        if not step.work:
            if self._sequences and not self._in_flight:
                raise InvariantBroken("There are sequences, and none can be computed.")
            return None
        self._num_steps += 1
        self._in_flight.append(step)
        released = tuple(self._released)
        self._released.clear()
        return step.to_plan(released)

    def update(self, result: ForwardResult) -> None:
        """Takes in the result of the oldest plan in flight.

        Raises: `InvariantBroken` when it does not answer that plan.
        """
        step = self._in_flight.popleft()
        expected = [work for work in step.work if work.samples]
        answered = [sampled.sequence_id for sampled in result.sampled]
        if result.step != step.number or answered != [w.sequence.sequence_id for w in expected]:
            raise InvariantBroken(f"The executor did not answer plan {step.number}.")
        for work in step.work:
            if work.counts:
                self._cache.register(work.sequence.table, work.sequence.token_ids, work.end)
        for work, sampled in zip(expected, result.sampled, strict=True):
            if work.counts:
                self._append(work.sequence, sampled.token_id)

    def check(self) -> None:
        """Asserts that blocks, rows and queues agree; for tests, linear in everything."""
        tables = [sequence.table for sequence in self._sequences.values()]
        self._pool.check(block_id for table in tables for block_id in table.block_ids)
        running = [sequence for sequence in self._sequences.values() if sequence.is_running]
        assert sorted(running, key=_by_precedence) == self._running
        assert len(self._sequences) == len(running) + len(self._waiting)
        assert not any(sequence.has_started for sequence in self._impatient)
        for sequence in self._sequences.values():
            assert sequence.is_running or not sequence.table.block_ids
            assert sequence.num_uncomputed_tokens >= 0

    # -- parts of a step -------------------------------------------------------------------------

    def _expire(self, now_unix_ms: int) -> None:
        """Ends the sequences whose deadline has passed; looks at them only when one may have."""
        if now_unix_ms < self._next_deadline_unix_ms:
            return
        for sequence in list(self._sequences.values()):
            if sequence.deadline_unix_ms <= now_unix_ms:
                self._finish(sequence, DeadlineExceeded("The request's deadline has passed."))
        deadlines = (sequence.deadline_unix_ms for sequence in self._sequences.values())
        self._next_deadline_unix_ms = min(deadlines, default=math.inf)

    def _schedule_decodes(self, step: Step) -> None:
        """One token for each sequence with one to compute; the last ones may lose their blocks."""
        index = 0
        while index < len(self._running):  # shrinks at its end when a sequence gives way
            sequence = self._running[index]
            index += 1
            if sequence.num_uncomputed_tokens == 1 and not sequence.is_fully_planned:
                new_ids = self._grow(sequence)
                if new_ids is not None:
                    step.add(sequence, 1, new_ids)

    def _grow(self, sequence: Sequence) -> tuple[BlockId, ...] | None:
        """The block for the next token, () if there is room; None if `sequence` had to give way."""
        table = sequence.table
        if sequence.num_computed_tokens < len(table.block_ids) * self._info.block_size:
            return ()
        while self._pool.num_free == 0:
            victim = self._running[-1]
            self._preempt(victim)
            if victim is sequence:
                return None
        new_ids = self._pool.allocate(1)
        table.block_ids.extend(new_ids)
        return new_ids

    def _schedule_chunk(
        self, step: Step, sequence: Sequence, new_ids: tuple[BlockId, ...], limit: int
    ) -> int:
        """Adds at most `limit` tokens of a prompt to the step; returns how many."""
        num_tokens = min(sequence.num_uncomputed_tokens, limit)
        if num_tokens > 0:
            step.add(sequence, num_tokens, new_ids)
        return num_tokens

    def _start_waiting(self, step: Step, cap: int, budget: int) -> None:
        """First chunks of waiting sequences, in order, while budget, places and blocks last."""
        while budget > 0 and len(self._running) < self._settings.max_running:
            sequence = self._waiting.peek()
            if sequence is None:
                return
            new_ids = self._allocate(sequence)
            if new_ids is None:
                return
            self._start(sequence, step)
            budget -= self._schedule_chunk(step, sequence, new_ids, min(cap, budget))

    def _chunk_cap(self, num_prompts: int) -> int:
        """Tokens one prompt may take of a step when `num_prompts` want some."""
        settings = self._settings
        return settings.max_chunk_tokens if num_prompts > 1 else settings.max_batch_tokens

    def _allocate(self, sequence: Sequence) -> tuple[BlockId, ...] | None:
        """Blocks for all known tokens, cached ones first; None when there are too few.

        A sequence gets them all at once, so a prompt never stops half-way, and leaves one free
        block to each running sequence, so that it does not lose its own to them at once.
        """
        if self._pool.num_free <= len(self._running):
            return None
        cached = self._cache.find(sequence.table, sequence.token_ids)
        num_blocks = -(-len(sequence.token_ids) // self._info.block_size)
        num_taken = num_blocks - len(cached) + self._pool.count_free(cached)
        if num_taken + len(self._running) > self._pool.num_free:
            return None
        for block_id in cached:
            self._pool.share(block_id)
        fresh = self._pool.allocate(num_blocks - len(cached))
        sequence.table.block_ids = [*cached, *fresh]
        sequence.table.num_registered = len(cached)
        sequence.num_computed_tokens = len(cached) * self._info.block_size
        return (*cached, *fresh)

    def _start(self, sequence: Sequence, step: Step) -> None:
        """Moves a sequence that has its blocks from the queue into the batch."""
        self._waiting.remove(sequence)
        insort(self._running, sequence, key=_by_precedence)
        sequence.is_running = True
        step.start(sequence)
        if not sequence.has_started:
            sequence.has_started = True
            self._outbox.add_started(sequence.sequence_id, sequence.num_computed_tokens)

    def _refuse_impatient(self) -> None:
        """Ends the arrivals that did not want to wait and could not start in this step."""
        for sequence in self._impatient:
            if not sequence.has_started and sequence.sequence_id in self._sequences:
                self._finish(sequence, PoolSaturated("The model is busy."))
        self._impatient.clear()

    # -- parts of a life -------------------------------------------------------------------------

    def _create_sequence(self, request: AddSequence, max_tokens: int) -> Sequence:
        """The record of a request that was admitted."""
        sampling = request.sampling
        if sampling.seed is None:
            sampling = msgspec.structs.replace(sampling, seed=self._draw_seed())
        self._num_arrivals += 1
        return Sequence(
            sequence_id=request.sequence_id,
            account_id=request.account_id,
            priority=request.priority,
            arrival=self._num_arrivals,
            deadline_unix_ms=request.deadline_unix_ms,
            reject_if_busy=request.reject_if_busy,
            sampling=sampling,
            max_tokens=max_tokens,
            token_ids=list(request.token_ids),
            num_prompt_tokens=len(request.token_ids),
            table=self._cache.create_table(request.cache_salt),
        )

    def _append(self, sequence: Sequence, token_id: int) -> None:
        """Takes in a sampled token, which may be the last."""
        sequence.num_pending_tokens -= 1
        sequence.token_ids.append(token_id)
        if not 0 <= token_id < self._info.vocab_size:
            self._finish(sequence, InvariantBroken("The model produced an invalid token."))
        elif token_id in self._eos_token_ids and not sequence.sampling.ignore_eos:
            self._finish(sequence, FinishReason.STOP)
        else:
            self._outbox.add_token(sequence.sequence_id, token_id)
            if sequence.num_completion_tokens == sequence.max_tokens:
                self._finish(sequence, FinishReason.LENGTH)

    def _preempt(self, sequence: Sequence) -> None:
        """Takes all blocks from a running sequence; it is computed again when there is room."""
        self._stop(sequence)
        self._waiting.push_front(sequence)

    def _finish(self, sequence: Sequence, outcome: FinishReason | ServiceError) -> None:
        """Ends a sequence, wherever it stands, and says so."""
        del self._sequences[sequence.sequence_id]
        if sequence.is_running:
            self._stop(sequence)
        else:
            self._waiting.remove(sequence)
        num_tokens = sequence.num_completion_tokens
        if isinstance(outcome, ServiceError):
            self._outbox.add_failed(sequence.sequence_id, num_tokens, outcome)
        else:
            self._outbox.add_finished(sequence.sequence_id, num_tokens, outcome)

    def _stop(self, sequence: Sequence) -> None:
        """Frees blocks and row.

        Steps in flight may still write to the blocks. The executor carries out plans in order, so
        that is over before a later plan uses them; the results no longer count.
        """
        self._running.remove(sequence)
        self._pool.release(reversed(sequence.table.block_ids))
        self._released.append(sequence.sequence_id)
        sequence.table.block_ids = []
        sequence.table.num_registered = 0
        sequence.is_running = False
        sequence.num_runs += 1
        sequence.num_computed_tokens = 0
        sequence.num_pending_tokens = 0
