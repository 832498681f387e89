"""Drives all sequences of an engine core: what comes in, each step, what comes back.

Pure: time and seeds are handed in, effects are plans and messages. What a step computes is the
planner's to say, who is alive stands in the books. Must not know the executor or the transport.
Read next: `planner`, `books`, then `core`, which drives this.
"""

from collections import deque

from contracts.errors import DeadlineExceeded, InvariantBroken, PoolSaturated, ServiceError
from contracts.inference import FinishReason
from gpu_pool.engine.books import Books
from gpu_pool.engine.entrance import Entrance
from gpu_pool.engine.intake import Intake
from gpu_pool.engine.messages import (
    AddSequence,
    ClaimRoom,
    CoreLoad,
    GrantRoom,
    RoomNews,
    StepOutput,
)
from gpu_pool.engine.outbox import Outbox
from gpu_pool.engine.planner import Planner
from gpu_pool.engine.sequence import Sequence
from gpu_pool.engine.step import Step
from gpu_pool.kv.kv_memory import KvMemory
from gpu_pool.plan import NO_TOKEN, ForwardPlan, ForwardResult, SequenceId


class Scheduler:
    """All sequences of one engine core."""

    def __init__(
        self, kv: KvMemory, entrance: Entrance, books: Books, planner: Planner, intake: Intake
    ) -> None:
        """Takes what `assembly.create_scheduler` built."""
        self._kv = kv
        self._entrance = entrance
        self._desk = entrance.desk
        self._books = books
        self._planner = planner
        self._intake = intake
        self._impatient: list[Sequence] = []
        """Arrived since the last step with `reject_if_busy`, or still waiting for a prefix."""
        self._in_flight: deque[Step] = deque()
        self._latest_id = 0
        self._num_steps = 0
        self._outbox = Outbox()

    @property
    def num_in_flight(self) -> int:
        """Plans made whose results have not been taken in."""
        return len(self._in_flight)

    @property
    def num_sequences(self) -> int:
        """Those that are not over."""
        return len(self._books) + len(self._desk)

    @property
    def books(self) -> Books:
        """Who is alive and what is under way, for whoever looks at it."""
        return self._books

    @property
    def kv(self) -> KvMemory:
        """The blocks, for whoever looks at them."""
        return self._kv

    @property
    def has_work(self) -> bool:
        """False when nothing happens until the next message, or the end of a landing or load."""
        return bool(self._books.has_startable or self._in_flight or self._has_chores)

    @property
    def _has_chores(self) -> bool:
        """Blocks wait for a plan that zeroes them or gives them up, whether it computes or not."""
        return self._kv.has_wiped or self._kv.shared.has_leaving

    @property
    def next_deadline_ms(self) -> int | None:
        """When to look again although nothing has happened; None: there is no need to."""
        landing_ms = self._books.passage.landings.next_deadline_ms
        held_ms = self._books.gate.next_deadline_ms
        waiting = [request.deadline_ms for request in self._desk.list_waiting()]
        known = [ms for ms in (landing_ms, held_ms, *waiting) if ms is not None]
        return min(known, default=None)

    @property
    def load(self) -> CoreLoad:
        """How busy the core is now."""
        books, kv = self._books, self._kv
        num_queued = books.num_ready_tokens + sum(
            sequence.num_prompt_tokens - sequence.num_computed_tokens
            for sequence in books.batch
            if sequence.num_computed_tokens < sequence.num_prompt_tokens
        )
        return CoreLoad(
            len(books.batch),
            books.num_ready - len(books.batch),
            kv.num_blocks,
            kv.num_free,
            num_queued,
            books.speed.compared_prefill_per_s,
            books.speed.decode_per_s,
            self._latest_id,
            len(books) - books.num_ready + len(self._desk),
            books.batch.num_preempted,
            books.speed.compared_step_s,
        )

    # -- what the server asks --------------------------------------------------------------------

    def add(self, request: AddSequence) -> None:
        """Lets a sequence wait for the next step, or answers why not."""
        self._latest_id = max(self._latest_id, request.sequence_id)
        known = self._books.find(request.sequence_id)
        if known is not None:  # one id, two streams: neither may get the other's answer
            self._finish(known, InvariantBroken("The node used the id of the request twice."))
        elif self._desk.withdraw(request.sequence_id):
            error = InvariantBroken("The node used the id of the request twice.")
            self._refuse(request.sequence_id, error)
        else:
            try:
                self._entrance.take(request)
            except PoolSaturated as error:
                self._refuse(request.sequence_id, error)
            else:
                self._look_after_entrance()

    def abort(self, sequence_id: SequenceId) -> None:
        """Ends a sequence now; its blocks are free and its row goes with the next plan."""
        sequence = self._books.find(sequence_id)
        if sequence is not None:
            self._finish(sequence, FinishReason.ABORTED)
        elif self._desk.withdraw(sequence_id):
            self._books.passage.decline(sequence_id)
            self._outbox.add_finished(sequence_id, 0, FinishReason.ABORTED)

    def fail_all(self, error: ServiceError) -> None:
        """Answers every sequence with `error`. The books are void then: nothing may follow."""
        for sequence in self._books:
            num_tokens = sequence.num_completion_tokens
            self._outbox.add_failed(sequence.sequence_id, num_tokens, error)
        self._books.clear()
        for request in self._desk.list_waiting():
            self._desk.withdraw(request.sequence_id)
            self._outbox.add_failed(request.sequence_id, 0, error)

    def forget_prefixes(self) -> None:
        """Takes note that the KV memory has lost all it held, and that adapters are to be loaded
        again. Only without sequences.
        """
        assert not self.has_work, "somebody still needs the KV memory"
        self._kv.forget()
        self._books.gate.forget()

    def take_room(self, room: GrantRoom | ClaimRoom, now_ms: int, *, is_asleep: bool) -> None:
        """More of the memory that models share has come, or is to go. Who sleeps takes none."""
        shared = self._kv.shared
        if isinstance(room, GrantRoom):
            shared.take_grant(room.num_bytes)
        else:
            self._kv.floors.forget_idle(now_ms)
            shared.take_claim(room.num_bytes)
            shared.part_with_owed(len(self._books.batch))
        if is_asleep:
            shared.forget()

    def take_room_news(self) -> RoomNews | None:
        """What the server has to be told of that memory; None when nothing."""
        shared = self._kv.shared
        num_running, is_waited = len(self._books.batch), len(self._books.waiting) > 0
        wish = shared.take_wish(num_running, is_waited=is_waited)
        given_bytes, late_bytes = shared.take_given(), shared.take_late()
        if wish is None and late_bytes is None and not given_bytes:
            return None
        return RoomNews(given_bytes, wish, late_bytes)

    def take_output(self) -> StepOutput | None:
        """What the server has to be told since the last call; None when nothing."""
        return self._outbox.take(self.load)

    # -- one step --------------------------------------------------------------------------------

    def look_after_passage(self, now_ms: int) -> None:
        """Takes in what has come and frees what has left; goes on while nothing can be computed,
        since another node may be reading, or waiting to hear where.
        """
        self._look_after_entrance()
        for sequence_id in self._books.passage.poll(now_ms):
            arrived = self._books.find(sequence_id)
            if arrived is not None:
                self._note_ready(arrived)

    def schedule(self, now_ms: int) -> ForwardPlan | None:
        """The next step, to be carried out after those in flight; None when there is none.

        At most `info.max_in_flight` plans may wait for their results.
        """
        self.look_after_passage(now_ms)
        self._look_after_gate()
        for sequence in self._books.list_late(now_ms):
            self._finish(sequence, DeadlineExceeded("The request's deadline has passed."))
        for request in self._desk.list_waiting():
            if request.deadline_ms <= now_ms and self._desk.withdraw(request.sequence_id):
                late = DeadlineExceeded("The request's deadline has passed.")
                self._refuse(request.sequence_id, late)
        step = Step(self._num_steps)
        self._look_after_masks()
        self._planner.plan(step)
        self._note_starts(step, now_ms)
        self._kv.shared.part_with_owed(len(self._books.batch))
        if not step.work and not self._has_chores:
            has_idle = self._books.has_startable and not self._books.masks.num_awaited
            if has_idle and not self._in_flight:
                raise InvariantBroken("There are sequences, and none can be computed.")
            return None
        self._num_steps += 1
        self._in_flight.append(step)
        released = self._books.batch.take_released()
        wiped, given_up = self._kv.take_wiped(), self._kv.shared.take_leaving()
        return step.to_plan(released, wiped, given_up, self._kv.take_moves())

    def update(self, result: ForwardResult) -> None:
        """Takes in the result of the oldest plan in flight.

        Raises: `InvariantBroken` when it does not answer that plan.
        """
        step = self._in_flight.popleft()
        if not step.is_answered_by(result):
            raise InvariantBroken(f"The executor did not answer plan {step.number}.")
        live = step.list_live()
        for sequence_id in result.failed:
            work = live.pop(sequence_id, None)
            if work is not None:
                error = InvariantBroken("The request's KV memory was given to another.")
                self._finish(work.sequence, error)
        garbled = {
            sampled.sequence_id for sampled in result.sampled if NO_TOKEN in sampled.token_ids
        }
        for sequence_id, work in live.items():
            if sequence_id in garbled:  # what it has written, or read, is found by nobody again
                self._books.passage.disown(work.sequence)
                continue
            self._kv.register(work.sequence.table, work.sequence.token_ids, work.end)
        self._kv.note_done()
        self._books.passage.exports.note_done(step.number)
        for scored in result.prompt_scores:
            if scored.sequence_id in live:
                news = self._intake.score(live[scored.sequence_id].sequence, scored)
                self._outbox.add_prompt_scores(scored.sequence_id, news)
        for sampled in result.sampled:
            if sampled.sequence_id in live:
                sequence = live[sampled.sequence_id].sequence
                num_told, outcome = self._intake.append(sequence, sampled)
                self._outbox.add_tokens(sampled, num_told)
                if outcome is not None:
                    self._finish(sequence, outcome)
                elif sequence.matcher is not None:
                    self._books.masks.ask(sequence)

    def note_step(self, seconds: float) -> None:
        """The oldest plan in flight has taken so long."""
        step = self._in_flight[0]
        num_decode = sum(work.end > work.sequence.num_prompt_tokens for work in step.work)
        num_prefill = step.num_tokens - step.num_drafts - num_decode
        self._books.speed.note_step(num_prefill, num_decode, seconds, step.num_pairs)
        self._planner.pace.note_step(num_prefill, num_decode, seconds)

    def check(self) -> None:
        """Asserts that blocks, rows and queues agree; for tests, linear in everything."""
        self._books.check()
        self._desk.check({sequence.sequence_id for sequence in self._books})
        assert not any(sequence.has_started for sequence in self._impatient)

    # -- parts of a life -------------------------------------------------------------------------

    def _look_after_entrance(self) -> None:
        """Lets new sequences wait for the next step, or answers why not."""
        for sequence_id, entered in self._entrance.poll():
            if isinstance(entered, ServiceError):
                self._refuse(sequence_id, entered)
                continue
            try:
                self._books.enter(entered)
            except ServiceError as error:
                self._refuse(sequence_id, error)
                continue
            self._open_passage(entered)

    def _refuse(self, sequence_id: SequenceId, error: ServiceError) -> None:
        """Answers a request that does not become a sequence."""
        self._desk.release(sequence_id)
        self._books.passage.decline(sequence_id)
        self._outbox.add_failed(sequence_id, 0, error)

    def _open_passage(self, sequence: Sequence) -> None:
        """Lets a new sequence wait for KV from elsewhere, if there is any; or refuses it."""
        try:
            is_waiting = self._books.passage.open(sequence)
        except PoolSaturated as error:
            self._finish(sequence, error)
            return
        if not is_waiting:
            self._note_ready(sequence)

    def _look_after_gate(self) -> None:
        """Lets pass whose adapters are there, and ends those who will not get theirs."""
        news = self._books.gate.poll()
        for sequence in news.passed:
            self._note_ready(sequence)
        for sequence, error in news.failed:
            self._finish(sequence, error)

    def _look_after_masks(self) -> None:
        """Gives what masks there are by now, and ends those who are to get none."""
        step_s, num_accounts = self._books.speed.decode_step_s, self._books.fair.num_active
        for sequence, outcome in self._books.masks.gather(step_s, num_accounts):
            if outcome is FinishReason.STOP and not sequence.has_started:
                # of a resumed answer, only the end was lost
                self._outbox.add_started(sequence.sequence_id, 0)
            self._finish(sequence, outcome)

    def _note_ready(self, sequence: Sequence) -> None:
        """A sequence may wait for nothing but a place and blocks, which it may not want to."""
        waits = sequence.table.is_landing or sequence.awaits_adapter
        if sequence.reject_if_busy and not waits:
            self._impatient.append(sequence)

    def _note_starts(self, step: Step, now_ms: int) -> None:
        """Tells who started for the first time, and refuses who did not want to wait for that."""
        for sequence in step.started:
            self._kv.floors.note_use(sequence.account_id, now_ms)
            if not sequence.has_started:
                sequence.has_started = True
                self._outbox.add_started(sequence.sequence_id, sequence.num_cached_tokens)
        impatient, self._impatient = self._impatient, []
        for sequence in impatient:
            if sequence.has_started or self._books.find(sequence.sequence_id) is not sequence:
                continue
            if self._planner.awaits_prefix(sequence):
                self._impatient.append(sequence)
            else:
                self._finish(sequence, PoolSaturated("The model is busy."))

    def _finish(self, sequence: Sequence, outcome: FinishReason | ServiceError) -> None:
        """Ends a sequence, wherever it stands, and says so."""
        self._books.leave(sequence)
        self._desk.release(sequence.sequence_id)
        num_tokens = sequence.num_completion_tokens
        if isinstance(outcome, ServiceError):
            self._outbox.add_failed(sequence.sequence_id, num_tokens, outcome)
        else:
            self._outbox.add_finished(sequence.sequence_id, num_tokens, outcome)
