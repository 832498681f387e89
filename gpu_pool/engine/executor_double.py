"""An executor without a model: the next token is a hash of all tokens before it.

Owns a strict reading of `gpu_pool.plan`: it keeps the KV memory as the real one does, each slot
holding a digest of the history up to its token, computes from what it reads there, and refuses a
plan that reads anything but a sequence's own history or writes where another one reads. A mistake
in scheduling, block accounting or prefix caching so becomes an error, not a wrong word.
Must not know the scheduler. Read next: `gpu_pool.plan`, `double_memory`.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from contracts.errors import InvariantBroken
from contracts.inference import SamplingParams
from gpu_pool.engine.double_adapters import DoubleAdapters
from gpu_pool.engine.double_memory import DoubleMemory, Slot, require
from gpu_pool.engine.double_tokens import Digest, digest_all, digest_next, score
from gpu_pool.plan import (
    NO_TOKEN,
    AdapterFile,
    AdapterNews,
    BlockId,
    ExecutorInfo,
    ForwardPlan,
    ForwardResult,
    HostMemory,
    KvGroup,
    KvGroupKind,
    NewSequence,
    PromptScores,
    SampledTokens,
    ScheduledSequence,
    SequenceId,
    TokenScore,
)


def create_double_info(
    *,
    block_size: int = 4,
    num_blocks: int = 64,
    context_window: int = 256,
    vocab_size: int = 1000,
    eos_token_ids: tuple[int, ...] = (0,),
    max_in_flight: int = 1,
    weights_bytes: int = 4096,
    kv_bytes: int = 1024,
    kv_groups: tuple[KvGroup, ...] = (KvGroup(KvGroupKind.FULL, 1, 1),),
    max_adapter_rank: int = 8,
    adapter_bytes: int = 100,
) -> ExecutorInfo:
    """What a double with these figures says of itself."""
    return ExecutorInfo(
        kv_groups=kv_groups,
        block_size=block_size,
        num_blocks=num_blocks,
        context_window=context_window,
        vocab_size=vocab_size,
        eos_token_ids=eos_token_ids,
        model_revision="double",
        kv_dtype="digest",
        max_in_flight=max_in_flight,
        weights_bytes=weights_bytes,
        kv_bytes=kv_bytes,
        max_adapter_rank=max_adapter_rank,
        adapter_bytes=adapter_bytes,
    )


@dataclass(slots=True)
class _Table:
    """The blocks of one row in one group, by index."""

    held: dict[int, BlockId] = field(default_factory=dict[int, BlockId])
    end: int = 0
    """The index behind the last block."""
    num_dropped: int = 0


@dataclass(slots=True)
class _Row:
    """What the executor keeps of a sequence."""

    token_ids: list[int]
    num_known_at_start: int
    num_prompt_tokens: int
    num_computed: int
    sampling: SamplingParams
    tables: list["_Table"]
    adapter_digest: bytes = b""
    history: list[Digest] = field(default_factory=list[Digest])
    """Digest of all tokens up to each computed one: what the slots have to hold."""
    is_new: bool = True

    @property
    def seed(self) -> int:
        """What the hash of a next token is mixed with; 0 when greedy."""
        return (self.sampling.seed or 0) if self.sampling.temperature > 0 else 0

    def would_complete(self, token_id: int, drawn: list[int]) -> bool:
        """True when `token_id` behind the answer and `drawn` completes a bad word."""
        answer = (*self.token_ids[self.num_prompt_tokens :], *drawn, token_id)
        return any(answer[-len(bad) :] == bad for bad in self.sampling.bad_spellings)


class ExecutorDouble:
    """Carries out plans at once and in full; every violation raises `InvariantBroken`."""

    def __init__(self, info: ExecutorInfo, *, fails_at_step: int | None = None) -> None:
        """`fails_at_step`: `collect` of that step raises, as a broken device would."""
        self._info = info
        self._fails_at_step = fails_at_step
        self._rows: dict[SequenceId, _Row] = {}
        self.memory = DoubleMemory(info)
        self.adapters = DoubleAdapters(info)
        self._moved_in: set[tuple[int, BlockId]] = set()
        self._results: deque[ForwardResult] = deque()
        self._next_step = 0
        self._is_asleep = False

    @property
    def info(self) -> ExecutorInfo:
        """What was given."""
        return self._info

    @property
    def host_memory(self) -> tuple[HostMemory, ...]:
        """Empty: what host blocks hold is in `memory`."""
        return tuple(HostMemory(memoryview(b""), 0) for _ in self._info.kv_groups)

    @property
    def num_rows(self) -> int:
        """Sequences that have a row."""
        return len(self._rows)

    def submit(self, plan: ForwardPlan) -> None:
        """Carries out `plan`. Raises: `InvariantBroken` when it breaks a rule."""
        require(not self._is_asleep, "a step without weights")
        require(len(self._results) < self._info.max_in_flight, "too many plans in flight")
        require(plan.step == self._next_step, f"step {plan.step} after {self._next_step - 1}")
        has_chores = any(plan.zeroed) or bool(plan.given_up)
        require(bool(plan.scheduled) or has_chores, "a plan without work")
        self._next_step += 1
        for sequence_id in plan.released:
            self._release(sequence_id)
        for work in plan.scheduled:
            if work.sequence_id in self._rows:
                self._drop_blocks(work)
        self.memory.move_out(plan.moved_out)
        for group, block_ids in enumerate(plan.zeroed):
            for block_id in block_ids:
                self.memory.zero(group, block_id)
        for blocks in plan.given_up:
            self.memory.give_up(blocks)
        for new in plan.new:
            self._add_row(new)
        work_of = {work.sequence_id: work for work in plan.scheduled}
        require(len(work_of) == len(plan.scheduled), "a sequence is scheduled twice")
        require(all(new.sequence_id in work_of for new in plan.new), "a new row without work")
        for work in plan.scheduled:
            if self._find_row(work.sequence_id).is_new:
                self._drop_blocks(work)
        self._moved_in = {(move.group, move.block_id) for move in plan.moved_in}
        for work in plan.scheduled:  # blocks first: no write may hit what another row just got
            self._append_blocks(work)
        self.memory.move_in(plan.moved_in)
        prompt_scores = [self._compute(work) for work in plan.scheduled]
        self.memory.move_out(plan.copied_out)
        sampled = tuple(self._sample(work) for work in plan.scheduled if work.samples)
        told = tuple(scores for scores in prompt_scores if scores is not None)
        self._results.append(ForwardResult(plan.step, sampled, told))

    def collect(self) -> ForwardResult:
        """The result of the oldest plan. Raises: `RuntimeError` at `fails_at_step`."""
        require(bool(self._results), "nothing was submitted")
        result = self._results.popleft()
        if result.step == self._fails_at_step:
            raise RuntimeError("the device is gone")
        return result

    def sleep(self) -> int:
        """Forgets the KV memory. Raises: `InvariantBroken` in the middle of a step."""
        require(not self._is_asleep, "sleeps twice")
        require(not self._results, "sleeps while a step is under way")
        self._is_asleep = True
        self.memory.clear()
        self.adapters.clear()
        return self._info.weights_bytes + self._info.kv_bytes

    def wake(self) -> int:
        """Is there again. Raises: `InvariantBroken` when it was all the time."""
        require(self._is_asleep, "wakes twice")
        self._is_asleep = False
        return self._info.weights_bytes + self._info.kv_bytes

    def measure_adapter(self, adapter: AdapterFile, wake: Callable[[], None]) -> None:
        """As `DoubleAdapters` has it."""
        require(not self._is_asleep, "asks about an adapter while asleep")
        self.adapters.measure(adapter, wake)

    def load_adapter(self, adapter: AdapterFile, wake: Callable[[], None]) -> None:
        """As `DoubleAdapters` has it."""
        require(not self._is_asleep, "loads an adapter while asleep")
        self.adapters.load(adapter, wake)

    def poll_adapters(self) -> tuple[AdapterNews, ...]:
        """What has become of adapters since the last call."""
        return self.adapters.poll()

    def drop_adapter(self, digest: bytes) -> None:
        """Forgets an adapter; a row that is computed with it afterwards is found out."""
        self.adapters.drop(digest)

    def close(self) -> None:
        """Forgets everything."""
        self._rows.clear()
        self.memory.clear()

    def _release(self, sequence_id: SequenceId) -> None:
        """Forgets a row; its blocks keep their content."""
        row = self._rows.pop(sequence_id, None)
        require(row is not None, f"row {sequence_id} does not exist")
        assert row is not None
        for group, table in enumerate(row.tables):
            for block_id in table.held.values():
                self.memory.take(sequence_id, group, block_id)

    def _add_row(self, new: NewSequence) -> None:
        """Takes in a sequence whose blocks are still to come."""
        require(new.sequence_id not in self._rows, f"row {new.sequence_id} exists")
        require(0 <= new.num_computed_tokens < len(new.token_ids), "nothing is left to compute")
        require(0 < new.num_prompt_tokens <= len(new.token_ids), "the prompt is cut")
        require(new.sampling.seed is not None, "no seed")
        adapter_digest = b"" if new.adapter is None else new.adapter.digest
        self._rows[new.sequence_id] = _Row(
            token_ids=list(new.token_ids),
            num_known_at_start=len(new.token_ids),
            num_prompt_tokens=new.num_prompt_tokens,
            num_computed=new.num_computed_tokens,
            sampling=new.sampling,
            tables=[_Table() for _ in self._info.kv_groups],
            adapter_digest=adapter_digest,
            history=digest_all(new.token_ids[: new.num_computed_tokens], adapter_digest),
        )

    def _drop_blocks(self, work: ScheduledSequence) -> None:
        """Lets go of leading blocks; a new row never held those."""
        row = self._find_row(work.sequence_id)
        for group, num_dropped in enumerate(work.nums_dropped):
            table = row.tables[group]
            require(num_dropped >= table.num_dropped, "holds again what it had dropped")
            if row.is_new:
                table.end = num_dropped
            for index in range(table.num_dropped, num_dropped):
                block_id = table.held.pop(index, None)
                if block_id is not None:
                    self.memory.take(work.sequence_id, group, block_id)
            table.num_dropped = num_dropped

    def _append_blocks(self, work: ScheduledSequence) -> None:
        """Appends exactly the blocks a row needs; those beyond the cached ones are fresh."""
        row = self._find_row(work.sequence_id)
        size = self._info.block_size
        end = row.num_computed + work.num_tokens + len(work.draft_token_ids)
        num_needed = -(-max(row.num_known_at_start, end) // size)
        require(len(work.new_block_ids) == len(row.tables), "not one tuple of blocks per group")
        for group, new_ids in enumerate(work.new_block_ids):
            table = row.tables[group]
            num_before = table.end
            num_cached = row.num_computed // size if row.is_new else 0
            tags = work.new_block_tags[group] if work.new_block_tags else (None,) * len(new_ids)
            for block_id, tag in zip(new_ids, tags, strict=True):
                is_fresh = table.end >= num_cached or (group, block_id) in self._moved_in
                self.memory.give(work.sequence_id, group, block_id, is_fresh=is_fresh, tag=tag)
                require(block_id not in table.held.values(), f"block {block_id} twice in a table")
                table.held[table.end] = block_id
                table.end += 1
            require(table.end * size >= end, "too few blocks")
            require(table.end <= max(num_needed, num_before), "more blocks than needed")
        row.is_new = False

    def _compute(self, work: ScheduledSequence) -> PromptScores | None:
        """Checks all that attention would read, then writes the slots of new tokens and drafts."""
        row = self._find_row(work.sequence_id)
        start, end = row.num_computed, row.num_computed + work.num_tokens
        is_there = not row.adapter_digest or row.adapter_digest in self.adapters.digests
        require(is_there, "computes with an adapter that is not there")
        require(work.num_tokens > 0, "no token to compute")
        require(end <= len(row.token_ids), "computes tokens that nobody has sampled")
        require(work.samples == (end == len(row.token_ids)), "samples at the wrong position")
        require(work.samples or not work.draft_token_ids, "drafts behind no newest token")
        require(work.samples or work.allowed_tokens is None, "a mask without a draw")
        tokens = [*row.token_ids[start:end], *work.draft_token_ids]
        require(start + len(tokens) <= self._info.context_window, "beyond the context window")
        for group, table in enumerate(row.tables):
            for position in range(self._find_first(group, start), start):
                require(
                    self.memory.read(self._slot(group, table, position)) == row.history[position],
                    f"sequence {work.sequence_id} reads foreign content at {position}",
                )
        for position, token_id in enumerate(tokens, start):
            last = row.history[-1] if row.history else row.adapter_digest
            row.history.append(digest_next(last, token_id))
            for group, table in enumerate(row.tables):
                slot = self._slot(group, table, position)
                self.memory.write(slot, row.history[-1], work.sequence_id)
        row.num_computed = end
        return self._score_prompt(work.sequence_id, row, start)

    def _score_prompt(self, sequence_id: SequenceId, row: _Row, start: int) -> PromptScores | None:
        """The scores that computing from `start` on tells, if they are asked for."""
        num_top = row.sampling.num_prompt_logprobs
        if num_top is None or start >= row.num_prompt_tokens:
            return None
        scores = [TokenScore(None)] if start == 0 else []
        scores += [
            score(row.history[position - 1], row.token_ids[position], num_top)
            for position in range(start + 1, min(row.num_computed + 1, row.num_prompt_tokens))
        ]
        return PromptScores(sequence_id, start + (start > 0), tuple(scores))

    def _sample(self, work: ScheduledSequence) -> SampledTokens:
        """The next tokens, each from the slot before it (and the seed unless greedy)."""
        row = self._find_row(work.sequence_id)
        token_ids: list[int] = []
        scores: list[TokenScore] = []
        for draft in (*work.draft_token_ids, None):
            content = self.memory.read(self._slot(0, row.tables[0], row.num_computed - 1))
            assert content is not None, "nothing was computed"
            token_ids.append(self._draw(content, row, token_ids, work.allowed_tokens))
            if row.sampling.num_logprobs is not None:
                scores.append(score(content, token_ids[-1], row.sampling.num_logprobs))
            if token_ids[-1] != draft:
                break
            row.num_computed += 1
        row.token_ids += [max(token_id, 0) for token_id in token_ids]
        del row.history[row.num_computed :]  # of drafts that were wrong
        return SampledTokens(work.sequence_id, tuple(token_ids), tuple(scores))

    def _draw(
        self, content: Digest, row: _Row, drawn: list[int], allowed_tokens: bytes | None
    ) -> int:
        """The token a slot's content leads to, or the next one that may follow `drawn`."""
        vocab_size = self._info.vocab_size
        token_id = int.from_bytes(digest_next(content, row.seed)) % vocab_size
        if allowed_tokens is None and not row.sampling.bad_spellings:
            return token_id
        bits = b"\xff" * vocab_size if allowed_tokens is None else allowed_tokens
        require(len(bits) * 8 >= vocab_size, "a mask too short")
        for distance in range(vocab_size):
            candidate = (token_id + distance) % vocab_size
            is_allowed = bits[candidate // 8] >> candidate % 8 & 1
            if is_allowed and not row.would_complete(candidate, drawn):
                return candidate
        require(bool(row.sampling.bad_spellings), "a mask that allows nothing")
        return NO_TOKEN

    def _find_first(self, group: int, position: int) -> int:
        """The first position that the token at `position` sees in a group."""
        kind, window = self._info.kv_groups[group].kind, self._info.kv_groups[group].window
        if window is None:
            return 0
        if kind is KvGroupKind.CHUNKED:
            return position // window * window
        return max(0, position - window + 1)

    def _slot(self, group: int, table: _Table, position: int) -> Slot:
        """Where a table puts the token at `position`."""
        index, offset = divmod(position, self._info.block_size)
        require(index in table.held, f"position {position} has no block")
        return (group, table.held[index], offset)

    def _find_row(self, sequence_id: SequenceId) -> _Row:
        """The row of a scheduled sequence."""
        row = self._rows.get(sequence_id)
        if row is None:
            raise InvariantBroken(f"Plan: row {sequence_id} does not exist.")
        return row
