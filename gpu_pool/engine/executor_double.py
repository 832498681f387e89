"""An executor without a model: the next token is a hash of all tokens before it.

Owns a strict reading of `gpu_pool.plan`: it keeps the KV memory as the real one does, each slot
holding a digest of the history up to its token, computes from what it reads there, and refuses a
plan that reads anything but a sequence's own history or writes where another one reads. A mistake
in scheduling, block accounting or prefix caching so becomes an error, not a wrong word.
Must not know the scheduler. Read next: `gpu_pool.plan`.
"""

import hashlib
from collections import deque
from dataclasses import dataclass, field

from contracts.errors import InvariantBroken
from gpu_pool.plan import (
    BlockId,
    ExecutorInfo,
    ForwardPlan,
    ForwardResult,
    KvGroup,
    KvGroupKind,
    NewSequence,
    SampledToken,
    ScheduledSequence,
    SequenceId,
)

_Digest = bytes


def create_double_info(
    *,
    block_size: int = 4,
    num_blocks: int = 64,
    context_window: int = 256,
    vocab_size: int = 1000,
    eos_token_ids: tuple[int, ...] = (0,),
    max_in_flight: int = 1,
) -> ExecutorInfo:
    """What a double with these figures says of itself."""
    return ExecutorInfo(
        kv_groups=(KvGroup(kind=KvGroupKind.FULL, num_layers=1, block_bytes=1),),
        block_size=block_size,
        num_blocks=num_blocks,
        context_window=context_window,
        vocab_size=vocab_size,
        eos_token_ids=eos_token_ids,
        model_revision="double",
        kv_dtype="digest",
        max_in_flight=max_in_flight,
    )


@dataclass(slots=True)
class _Row:
    """What the executor keeps of a sequence."""

    token_ids: list[int]
    num_known_at_start: int
    num_computed: int
    seed: int
    tables: list[list[BlockId]]
    history: list[_Digest] = field(default_factory=list[_Digest])
    """Digest of all tokens up to each computed one: what the slots have to hold."""


class ExecutorDouble:
    """Carries out plans at once and in full; every violation raises `InvariantBroken`."""

    def __init__(self, info: ExecutorInfo, *, fails_at_step: int | None = None) -> None:
        """`fails_at_step`: `collect` of that step raises, as a broken device would."""
        self._info = info
        self._fails_at_step = fails_at_step
        self._rows: dict[SequenceId, _Row] = {}
        self._memory: dict[tuple[int, BlockId, int], _Digest] = {}
        """Slot (group, block, offset) to content; what is missing was never written."""
        self._readers: dict[tuple[int, BlockId], set[SequenceId]] = {}
        self._results: deque[ForwardResult] = deque()
        self._next_step = 0

    @property
    def info(self) -> ExecutorInfo:
        """What was given."""
        return self._info

    @property
    def num_rows(self) -> int:
        """Sequences that have a row."""
        return len(self._rows)

    def submit(self, plan: ForwardPlan) -> None:
        """Carries out `plan`. Raises: `InvariantBroken` when it breaks a rule."""
        _require(len(self._results) < self._info.max_in_flight, "too many plans in flight")
        _require(plan.step == self._next_step, f"step {plan.step} after {self._next_step - 1}")
        _require(bool(plan.scheduled), "a plan without work")
        self._next_step += 1
        for sequence_id in plan.released:
            self._release(sequence_id)
        for new in plan.new:
            self._add_row(new)
        work_of = {work.sequence_id: work for work in plan.scheduled}
        _require(len(work_of) == len(plan.scheduled), "a sequence is scheduled twice")
        _require(all(new.sequence_id in work_of for new in plan.new), "a new row without work")
        for work in plan.scheduled:  # blocks first: no write may hit what another row just got
            self._append_blocks(work)
        for work in plan.scheduled:
            self._compute(work)
        sampled = tuple(self._sample(w.sequence_id) for w in plan.scheduled if w.samples)
        self._results.append(ForwardResult(plan.step, sampled))

    def collect(self) -> ForwardResult:
        """The result of the oldest plan. Raises: `RuntimeError` at `fails_at_step`."""
        _require(bool(self._results), "nothing was submitted")
        result = self._results.popleft()
        if result.step == self._fails_at_step:
            raise RuntimeError("the device is gone")
        return result

    def close(self) -> None:
        """Forgets everything."""
        self._rows.clear()
        self._memory.clear()

    def _release(self, sequence_id: SequenceId) -> None:
        """Forgets a row; its blocks keep their content."""
        row = self._rows.pop(sequence_id, None)
        _require(row is not None, f"row {sequence_id} does not exist")
        assert row is not None
        for group, table in enumerate(row.tables):
            for block_id in table:
                self._readers[group, block_id].discard(sequence_id)

    def _add_row(self, new: NewSequence) -> None:
        """Takes in a sequence whose blocks are still to come."""
        _require(new.sequence_id not in self._rows, f"row {new.sequence_id} exists")
        _require(0 <= new.num_computed_tokens < len(new.token_ids), "nothing is left to compute")
        _require(0 < new.num_prompt_tokens <= len(new.token_ids), "the prompt is cut")
        _require(new.num_computed_tokens % self._info.block_size == 0, "a shared block is not full")
        _require(new.sampling.seed is not None, "no seed")
        self._rows[new.sequence_id] = _Row(
            token_ids=list(new.token_ids),
            num_known_at_start=len(new.token_ids),
            num_computed=new.num_computed_tokens,
            seed=(new.sampling.seed or 0) if new.sampling.temperature > 0 else 0,
            tables=[[] for _ in self._info.kv_groups],
            history=_digest_all(new.token_ids[: new.num_computed_tokens]),
        )

    def _append_blocks(self, work: ScheduledSequence) -> None:
        """Appends exactly the blocks a row needs; those beyond the cached ones are fresh."""
        row = self._find_row(work.sequence_id)
        size = self._info.block_size
        num_tokens = max(row.num_known_at_start, row.num_computed + work.num_tokens)
        _require(len(work.new_block_ids) == len(row.tables), "not one tuple of blocks per group")
        for group, new_ids in enumerate(work.new_block_ids):
            table = row.tables[group]
            num_cached = 0 if table else row.num_computed // size
            for index, block_id in enumerate(new_ids):
                _require(0 <= block_id < self._info.num_blocks, f"block {block_id} does not exist")
                _require(block_id not in table, f"block {block_id} twice in a table")
                readers = self._readers.setdefault((group, block_id), set())
                if index >= num_cached:
                    _require(not readers, f"block {block_id} is in use")
                    self._poison(group, block_id)
                readers.add(work.sequence_id)
                table.append(block_id)
            _require(len(table) == -(-num_tokens // size), "too few or too many blocks")

    def _poison(self, group: int, block_id: BlockId) -> None:
        """Empties a block, so that what its former owner left cannot be read."""
        for offset in range(self._info.block_size):
            self._memory.pop((group, block_id, offset), None)

    def _compute(self, work: ScheduledSequence) -> None:
        """Checks all that attention would read, then writes the new tokens' slots."""
        row = self._find_row(work.sequence_id)
        end = row.num_computed + work.num_tokens
        _require(work.num_tokens > 0, "no token to compute")
        _require(end <= len(row.token_ids), "computes tokens that nobody has sampled")
        _require(end <= self._info.context_window, "beyond the context window")
        _require(work.samples == (end == len(row.token_ids)), "samples at the wrong position")
        for group, table in enumerate(row.tables):
            for position, digest in enumerate(row.history):
                _require(
                    self._memory.get(self._slot(group, table, position)) == digest,
                    f"sequence {work.sequence_id} reads foreign content at {position}",
                )
        for position in range(row.num_computed, end):
            last = row.history[-1] if row.history else b""
            row.history.append(_digest(last, row.token_ids[position]))
            for group, table in enumerate(row.tables):
                slot = self._slot(group, table, position)
                readers = self._readers[group, slot[1]]
                _require(
                    readers == {work.sequence_id}, f"writes to block {slot[1]}, which is shared"
                )
                self._memory[slot] = row.history[-1]
        row.num_computed = end

    def _sample(self, sequence_id: SequenceId) -> SampledToken:
        """The next token, from the last slot's content (and the seed unless greedy)."""
        row = self._find_row(sequence_id)
        content = self._memory[self._slot(0, row.tables[0], row.num_computed - 1)]
        token_id = int.from_bytes(_digest(content, row.seed)) % self._info.vocab_size
        row.token_ids.append(token_id)
        return SampledToken(sequence_id, token_id)

    def _slot(self, group: int, table: list[BlockId], position: int) -> tuple[int, BlockId, int]:
        """Where a table puts the token at `position`."""
        index, offset = divmod(position, self._info.block_size)
        return (group, table[index], offset)

    def _find_row(self, sequence_id: SequenceId) -> _Row:
        """The row of a scheduled sequence."""
        row = self._rows.get(sequence_id)
        if row is None:
            raise InvariantBroken(f"Plan: row {sequence_id} does not exist.")
        return row


def predict_tokens(
    token_ids: tuple[int, ...], count: int, *, vocab_size: int, seed: int = 0
) -> tuple[int, ...]:
    """The `count` tokens that a double generates after `token_ids`; `seed` 0 stands for greedy."""
    history = list(token_ids)
    digest = _digest_all(history)[-1]
    for _ in range(count):
        history.append(int.from_bytes(_digest(digest, seed)) % vocab_size)
        digest = _digest(digest, history[-1])
    return tuple(history[len(token_ids) :])


def _digest_all(token_ids: list[int] | tuple[int, ...]) -> list[_Digest]:
    """The digest of every prefix of `token_ids`."""
    digests: list[_Digest] = []
    for token_id in token_ids:
        digests.append(_digest(digests[-1] if digests else b"", token_id))
    return digests


def _digest(history: _Digest, number: int) -> _Digest:
    """The digest of a history followed by `number`."""
    return hashlib.blake2b(history + number.to_bytes(8, "little"), digest_size=8).digest()


def _require(condition: bool, violation: str) -> None:
    """Raises: `InvariantBroken` unless `condition`."""
    if not condition:
        raise InvariantBroken(f"Plan: {violation}.")
