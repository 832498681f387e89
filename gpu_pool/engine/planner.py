"""Fills one step with work: decodes first, then prompts in fair order, under one token budget.

Owns what a step computes and who starts; must not know messages or results. Decodes go in order of
precedence; when blocks run out somebody gives way and is computed again later. Prompts under way
and those that wait are served together: higher priority first, then the account served least.
Read next: `displacement` (who gives way), `prompt_pace`, `contracts.fair_order`, `scheduler` (the
caller).
"""

import heapq
from enum import Enum, auto

from contracts.fair_order import DECODE_WEIGHT, PREFILL_WEIGHT
from contracts.ids import AccountId
from gpu_pool.engine.books import Books
from gpu_pool.engine.displacement import Displacement, Shares
from gpu_pool.engine.prompt_pace import PromptPace
from gpu_pool.engine.sequence import Sequence
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.engine.step import Step
from gpu_pool.engine.waiting_queue import LineKey
from gpu_pool.kv.block import FoundPrefix
from gpu_pool.kv.kv_memory import KvMemory

_MAX_LOOKED_AT = 8
"""Sequences of a line that are looked at in a step while those before them await a prefix."""
MAX_STEP_SCORES = 4096
"""Scores of prompts that a step brings, alternatives included: everybody waits while they are
taken from the device, and again while the server passes them on."""

_Entry = tuple[int, int, bool, int, Sequence | LineKey]
"""Sorts by priority, what the account was served, running before waiting, arrival."""


class _Start(Enum):
    """How an attempt to start a sequence ended."""

    DONE = auto()
    NO_PLACE = auto()
    NO_ROOM = auto()


class Planner:
    """Plans the steps of one engine core."""

    def __init__(
        self, settings: SchedulerSettings, kv: KvMemory, books: Books, num_stages: int = 1
    ) -> None:
        """Moves sequences between the queue and the batch of `books`.

        With several stages, steps in flight share out the sequences.
        """
        self._num_stages = num_stages
        self._settings = settings
        self._kv = kv
        self._batch = books.batch
        self._waiting = books.waiting
        self._fair = books.fair
        self._exports = books.passage.exports
        self.pace = PromptPace(settings.max_pause_ms, settings.max_batch_tokens, books.speed)
        """Hears of steps from the scheduler."""
        self._displacement = Displacement(books.batch, books.fair, kv)
        self._is_short = False
        """Somebody could not start in the last step for want of blocks."""
        self._cost = 0
        """What the step in the making costs all accounts together."""
        self._num_scores_left = 0
        """Scores of prompts that it may still bring."""

    def plan(self, step: Step) -> None:
        """Fills `step`."""
        self._cost = 0
        self._num_scores_left = MAX_STEP_SCORES
        self._kv.shared.begin_step()
        if len(self._waiting) and (self._is_short or self._is_full):
            self._make_room(step)
        self._schedule_decodes(step)
        room = self._settings.max_batch_tokens - step.num_tokens
        holds_up = step.work or any(sequence.waits_for_step for sequence in self._batch)
        self._schedule_prompts(step, self.pace.bound(room) if holds_up else room)
        while not step.work and len(self._batch) > 1 and not self._is_awaiting:
            self._batch.preempt(self._batch[len(self._batch) - 1])  # the rings have run dry
            self._schedule_prompts(step, self._settings.max_batch_tokens)

    def awaits_prefix(self, sequence: Sequence) -> bool:
        """True where a place is free, and what `sequence` begins with is being computed just now,
        or waits in host memory for its mask: it waits for neither place nor blocks.
        """
        if self._is_full or sequence.is_kept_in_host:
            return not self._is_full
        return self._kv.find(sequence.table, sequence.reusable_tokens).is_awaited

    @property
    def _is_awaiting(self) -> bool:
        """Steps in flight sample what running sequences go on with, or it is being found out what
        may come next.
        """
        return any(one.num_pending_tokens or one.awaits_mask for one in self._batch)

    @property
    def _is_full(self) -> bool:
        """No place in the batch is left."""
        return len(self._batch) >= self._settings.max_running

    @property
    def _shares(self) -> Shares:
        """What each active account is entitled to."""
        num_active = max(1, self._fair.num_active)
        num_places = max(1, self._settings.max_running // num_active)
        return Shares(num_places, self._kv.num_blocks // num_active)

    # -- room ------------------------------------------------------------------------------------

    def _make_room(self, step: Step) -> None:
        """Lets others give way to the first one in line who is entitled to that."""
        shares = self._shares
        for priority, account_id in sorted(self._waiting.list_lines(), key=self._rank_line):
            is_low = self._batch.count_of(account_id) >= shares.num_places
            if is_low and (
                not len(self._batch) or self._batch[len(self._batch) - 1].priority >= priority
            ):
                continue
            if not self._displacement.may_choose(priority, account_id, shares, step.number):
                continue
            found = self._find_startable((priority, account_id))
            if found is None:
                continue
            newcomer, prefix = found
            num_tokens, spare = len(newcomer.token_ids), len(self._batch)
            needed, lacking = self._kv.measure(newcomer.table, prefix, num_tokens, spare)
            if lacking == 0 and not self._is_full:
                continue
            victims = self._displacement.choose_for_start(
                newcomer, needed, lacking, shares, step.number
            )
            for victim in victims:
                self._batch.preempt(victim)
            if victims:  # started before those who decode take what was freed
                self._start(newcomer, self._kv.find(newcomer.table, newcomer.reusable_tokens), step)
                return

    def _rank_line(self, key: LineKey) -> tuple[int, int]:
        """Sorts lines into the order in which they are served."""
        priority, account_id = key
        return (-priority, self._fair.read(account_id))

    # -- decodes ---------------------------------------------------------------------------------

    def _schedule_decodes(self, step: Step) -> None:
        """One token for each sequence with one to compute; some may lose their blocks."""
        num_drafts_left = self._draft_budget
        most = -(-len(self._batch) // self._num_stages)
        charges: dict[AccountId, int] = {}
        index = 0
        while index < len(self._batch) and len(step.work) < most:
            # The batch shrinks behind `index` when a sequence gives way.
            sequence = self._batch[index]
            if self._may_decode(sequence):
                drafts = self._draft(sequence, num_drafts_left) if num_drafts_left else ()
                news = self._kv.nothing_new
                if drafts or not self._has_room(sequence):
                    if not drafts and not self._grow(sequence, index):
                        continue  # it gave way itself; the next one stands at its place
                    news = self._kv.take_new(sequence.table)
                num_drafts_left -= len(drafts)
                step.add(sequence, 1, news, drafts)
                if self._exports.has_sinks:
                    self._copy_out(step, sequence)
                cost = DECODE_WEIGHT + len(drafts) * PREFILL_WEIGHT
                charges[sequence.account_id] = charges.get(sequence.account_id, 0) + cost
            index += 1
        for account_id, cost in charges.items():
            self._charge(account_id, cost)

    def _may_decode(self, sequence: Sequence) -> bool:
        """Whether one token is left to compute, and may be now."""
        if sequence.num_uncomputed_tokens != 1:
            return False
        if self._num_stages > 1 and sequence.num_pending_tokens:
            return False
        return sequence.may_be_planned

    @property
    def _draft_budget(self) -> int:
        """Guessed tokens that a step may compute beside one token of each running sequence."""
        if self._settings.ngram is None:
            return 0
        room = self._settings.max_batch_tokens - len(self._batch)
        return min(self._settings.ngram.max_step_drafts, room)

    def _draft(self, sequence: Sequence, num_left: int) -> tuple[int, ...]:
        """Guesses for a sequence that has room for them; nobody gives way for a guess."""
        limit = min(num_left, sequence.max_drafts)
        if limit <= 0 or sequence.drafter is None:
            return ()
        drafts = sequence.drafter.propose(sequence.token_ids, limit)
        end = sequence.num_computed_tokens + 1 + len(drafts)
        return drafts if drafts and self._extend(sequence, end) else ()

    def _has_room(self, sequence: Sequence) -> bool:
        """The next token goes where the one before it went, and the executor knows the place."""
        return sequence.has_row and self._kv.is_inside_block(sequence.num_computed_tokens)

    def _grow(self, sequence: Sequence, index: int) -> bool:
        """Makes room for the next token; False when `sequence` had to give way for that."""
        start = sequence.num_computed_tokens
        while not self._extend(sequence, start + 1):
            self._kv.note_full(sequence.table, start + 1)
            candidates = [self._batch[place] for place in range(index, len(self._batch))]
            victim = self._displacement.choose_for_growth(candidates)
            self._batch.preempt(victim)
            if victim is sequence:
                return False
        return True

    def _extend(self, sequence: Sequence, end: int) -> bool:
        """Room for computing up to `end`. Floors of others fall only to who is alone."""
        start, is_alone = sequence.num_computed_tokens, len(self._batch) == 1
        return self._kv.extend(sequence.table, start, end, takes_floors=is_alone)

    # -- prompts ---------------------------------------------------------------------------------

    def _schedule_prompts(self, step: Step, budget: int) -> None:
        """Chunks of prompts, under way and waiting, while budget, places and blocks last."""
        self._is_short = False
        heap = self._list_prompts()
        num_prompts = sum(not entry[2] for entry in heap) + len(self._waiting)
        cap = self._chunk_cap(budget) if num_prompts > 1 else budget
        while heap and budget > 0:
            priority, served, is_waiting, arrival, item = heapq.heappop(heap)
            account_id = item.account_id if isinstance(item, Sequence) else item[1]
            if served != self._fair.read(account_id):  # it was served since
                served = self._fair.read(account_id)
                heapq.heappush(heap, (priority, served, is_waiting, arrival, item))
            elif isinstance(item, Sequence):
                budget -= self._schedule_chunk(step, item, min(cap, budget))
            else:
                budget -= self._serve_line(step, item, min(cap, budget), heap)

    def _list_prompts(self) -> list[_Entry]:
        """Prompts under way, and the lines in which others wait, as a heap."""
        heap = [
            self._rank(sequence, is_waiting=False)
            for sequence in self._batch
            if sequence.num_uncomputed_tokens > 1
        ]
        if not self._is_full:
            for key in self._waiting.list_lines():
                head = next(self._waiting.walk(key))
                heap.append((*self._rank(head, is_waiting=True)[:4], key))
        heapq.heapify(heap)
        return heap

    def _rank(self, sequence: Sequence, *, is_waiting: bool) -> _Entry:
        """Sorts a sequence into the order in which prompts are served."""
        served = self._fair.read(sequence.account_id)
        return (-sequence.priority, served, is_waiting, sequence.arrival, sequence)

    def _serve_line(self, step: Step, key: LineKey, limit: int, heap: list[_Entry]) -> int:
        """Starts the next sequence of a line, which then stands in `heap` again if it goes on.

        Returns the tokens planned. Nobody else starts while an account that holds less than its
        share cannot: what becomes free is for it. It pays for such steps as if they were its own,
        once it starts or leaves; before, somebody else would come first and take what is free.
        """
        found = self._find_startable(key)
        if found is None:
            return 0
        sequence, prefix = found
        outcome = self._start(sequence, prefix, step)
        if outcome is _Start.DONE:
            num_tokens = self._schedule_chunk(step, sequence, limit)
            head = next(self._waiting.walk(key), None)
            if head is not None:
                heapq.heappush(heap, (*self._rank(head, is_waiting=True)[:4], key))
            return num_tokens
        if outcome is _Start.NO_ROOM:
            self._is_short = True
            num_tokens, spare = len(sequence.token_ids), len(self._batch)
            self._kv.note_lack(sequence.table, prefix, num_tokens, spare)
        if outcome is _Start.NO_PLACE or self._displacement.is_owed(key[1], self._shares):
            if outcome is _Start.NO_ROOM and _has_others(heap, key[1]):
                sequence.held_cost += self._cost
            heap[:] = [entry for entry in heap if not entry[2]]
            heapq.heapify(heap)
        return 0

    def _find_startable(self, key: LineKey) -> tuple[Sequence, FoundPrefix] | None:
        """The first sequence of a line whose adapter is there, whose mask is if its KV is in host
        memory, and whose prefix nobody else is computing just now, nor brings from elsewhere.
        """
        num_looked_at = 0
        for sequence in self._waiting.walk(key):
            if sequence.table.is_landing or sequence.awaits_adapter or sequence.is_kept_in_host:
                continue
            if num_looked_at == _MAX_LOOKED_AT:
                return None
            num_looked_at += 1
            prefix = self._kv.find(sequence.table, sequence.reusable_tokens)
            if not prefix.is_awaited:
                return sequence, prefix
        return None

    def _start(self, sequence: Sequence, prefix: FoundPrefix, step: Step) -> _Start:
        """Moves a sequence from its line into the batch, if there is a place and room.

        A sequence gets room for its whole prompt at once, so that it never stops half-way, and
        leaves one free block to each running one, so that it does not lose its own to them at once.
        """
        if self._is_full:
            return _Start.NO_PLACE
        num_running = len(self._batch)
        if not self._kv.begin(
            sequence.table,
            prefix,
            sequence.token_ids,
            spare=num_running,
            takes_floors=num_running == 0,
        ):
            return _Start.NO_ROOM
        sequence.num_computed_tokens = sequence.num_cached_tokens = prefix.num_tokens
        sequence.started_step = step.number
        self._fair.charge(sequence.account_id, sequence.held_cost)
        sequence.held_cost = 0
        self._waiting.remove(sequence)
        self._batch.start(sequence)
        step.started.append(sequence)
        return _Start.DONE

    def _schedule_chunk(self, step: Step, sequence: Sequence, limit: int) -> int:
        """Adds at most `limit` tokens of a prompt to the step; returns how many."""
        num_computable = sequence.num_uncomputed_tokens - sequence.awaits_mask
        num_tokens = min(num_computable, limit, self._kv.max_step_tokens)
        num_scores_each = sequence.num_scores_each
        if num_scores_each:
            num_tokens = min(num_tokens, self._num_scores_left // num_scores_each)
        if not num_tokens:
            return 0  # the scores of others fill the step, or a mask is lacking
        if not self._extend(sequence, sequence.num_computed_tokens + num_tokens):
            self._is_short = True
            return 0
        self._num_scores_left -= num_tokens * num_scores_each
        step.add(sequence, num_tokens, self._kv.take_new(sequence.table))
        self._copy_out(step, sequence)
        self._charge(sequence.account_id, num_tokens * PREFILL_WEIGHT)
        return num_tokens

    def _charge(self, account_id: AccountId, cost: int) -> None:
        """Has an account pay for what the step computes for it."""
        self._fair.charge(account_id, cost)
        self._cost += cost

    def _copy_out(self, step: Step, sequence: Sequence) -> None:
        """Has copied what the step completes, if somebody takes it along."""
        end = sequence.num_computed_tokens
        self._exports.plan(step.number, sequence.sequence_id, sequence.table, end)

    def _chunk_cap(self, budget: int) -> int:
        """Tokens of `budget` that one prompt may take while others want some."""
        settings = self._settings
        return max(1, budget * settings.max_chunk_tokens // settings.max_batch_tokens)


def _has_others(heap: list[_Entry], account_id: AccountId) -> bool:
    """True where another account has somebody in line."""
    lines = (item for *_, item in heap if not isinstance(item, Sequence))
    return any(other != account_id for _, other in lines)
