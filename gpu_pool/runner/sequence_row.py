"""The tensor side's state of one sequence: its tokens, how far they are computed, its blocks.

Owned by the model runner and its lane and changed only there; must not know the scheduler's
`Sequence`.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gpu_pool.attention.batch import Span
from gpu_pool.attention.kv_cache import Int64Array
from gpu_pool.lora.loading import LoadedAdapter
from gpu_pool.plan import BlockId, NewSequence, ScheduledSequence
from gpu_pool.runner.block_tags import BlockTags
from gpu_pool.sampling.bad_words import BadWords
from gpu_pool.sampling.biases import Biases
from gpu_pool.sampling.penalties import TokenCounts
from gpu_pool.sampling.sampler import SamplingRow


class BlockTable:
    """The blocks of one sequence in one KV group, in order."""

    __slots__ = ("_block_ids", "_num_blocks", "_num_dropped", "_tags")

    def __init__(self, size: int) -> None:
        """An empty table of at most `size` blocks."""
        self._block_ids: Int64Array = np.zeros(size, dtype=np.int64)
        self._tags: Int64Array | None = None
        self._num_blocks = 0
        self._num_dropped = 0

    def add_blocks(self, block_ids: Sequence[BlockId], tags: Sequence[int] = ()) -> None:
        """Appends blocks; their tags count where the first ones brought tags, too."""
        end = self._num_blocks + len(block_ids)
        assert end <= self._block_ids.shape[0], "more blocks than the context can hold"
        if tags and self._tags is None:
            self._tags = np.zeros_like(self._block_ids)
        if self._tags is not None:
            self._tags[self._num_blocks : end] = tags
        self._block_ids[self._num_blocks : end] = block_ids
        # Padded contexts read the sequence's own last block again, never a neighbour's.
        self._block_ids[end:] = block_ids[-1]
        self._num_blocks = end

    def list_newest(self, count: int) -> tuple[int, list[BlockId]]:
        """The place of the newest `count` blocks in the table, and the blocks."""
        first = self._num_blocks - count
        return first, self._block_ids[first : self._num_blocks].tolist()

    def skip(self, count: int) -> None:
        """Lets a table without blocks begin behind `count` that it never held."""
        assert self._num_blocks == 0, "the table has begun"
        self._num_blocks = self._num_dropped = count

    def drop(self, count: int) -> Int64Array:
        """Forgets the first `count` blocks, which no later token reads; those it held until now.

        Masked reads go to the first one that is left, never to a neighbour's.
        """
        assert count < self._num_blocks, "no block is left"
        dropped = self._block_ids[self._num_dropped : count].copy()
        self._num_dropped = count
        self._block_ids[:count] = self._block_ids[count]
        return dropped

    @property
    def held_ids(self) -> Int64Array:
        """The blocks that it has been given and not dropped."""
        return self._block_ids[self._num_dropped : self._num_blocks]

    def agrees_with(self, known: BlockTags) -> bool:
        """True unless one of the blocks has become another's."""
        if self._tags is None:
            return True
        return known.agree(self.held_ids, self._tags[self._num_dropped : self._num_blocks])

    def create_span(self, start: int, num_tokens: int, block_size: int) -> Span:
        """The span of `num_tokens` from `start` on."""
        span = Span(start, num_tokens, self._block_ids)
        assert span.end <= self._num_blocks * block_size, "scheduled without blocks"
        return span

    def list_stale_blocks(self, num_new: int, span: Span, block_size: int) -> list[int]:
        """The newest `num_new` blocks less those that hold computed tokens or are written whole."""
        first_empty = max(-(-span.start // block_size), span.end // block_size)
        return self._block_ids[
            max(self._num_blocks - num_new, first_empty) : self._num_blocks
        ].tolist()


class SequenceRow:
    """One sequence between its first plan and its release."""

    __slots__ = (
        "_bad_words",
        "_biases",
        "_counts",
        "adapter",
        "is_new",
        "num_computed",
        "num_pending",
        "num_prompt_tokens",
        "place",
        "sampling",
        "tables",
        "token_ids",
    )

    def __init__(
        self,
        new: NewSequence,
        *,
        num_groups: int,
        table_size: int,
        vocab_size: int,
        device: torch.device,
        adapter: LoadedAdapter | None = None,
    ) -> None:
        """A row without blocks; `table_size` is the most a group can have, padding included."""
        assert 0 <= new.num_computed_tokens < len(new.token_ids), "nothing is left to compute"
        assert min(new.token_ids) >= 0, "negative token id"
        assert max(new.token_ids) < vocab_size, "token id outside the vocabulary"
        self.token_ids = list(new.token_ids)
        self.num_computed = new.num_computed_tokens
        """Leading tokens whose keys and values are in the blocks, or will be after the steps under
        way."""
        self.num_pending = 0
        """Tokens that steps under way draw, behind those known here."""
        self.place = -1
        """Where the device keeps its part of the row, if it keeps one."""
        self.num_prompt_tokens = new.num_prompt_tokens
        self.tables = tuple([BlockTable(table_size) for _ in range(num_groups)])
        """One per KV group."""
        self.sampling = new.sampling
        self.adapter = adapter
        """What its tokens are computed with besides the model."""
        self.is_new = True
        """No plan has given it blocks yet."""
        output = new.token_ids[new.num_prompt_tokens :]
        self._counts: TokenCounts | None = None
        if new.sampling.has_penalties:
            prompt = new.token_ids[: new.num_prompt_tokens]
            self._counts = TokenCounts(prompt, output, vocab_size, device)
        self._bad_words: BadWords | None = None
        if new.sampling.bad_spellings:
            self._bad_words = BadWords(new.sampling.bad_spellings, output, device)
        self._biases: Biases | None = None
        if new.sampling.logit_bias:
            self._biases = Biases(new.sampling.logit_bias, device)

    def take_blocks(self, item: ScheduledSequence, known: Sequence[BlockTags]) -> None:
        """Appends the blocks of a plan and lets go of those it says are gone.

        `known`, one for each table, learns of both. Needless where the row is not new and the plan
        has neither.
        """
        is_new = self.is_new
        self.is_new = False
        tags = item.new_block_tags or ((),) * len(self.tables)
        dropped = item.nums_dropped or (0,) * len(self.tables)
        groups = zip(self.tables, known, item.new_block_ids, tags, dropped, strict=True)
        for table, known_tags, new_ids, new_tags, num_dropped in groups:
            if is_new:
                table.skip(num_dropped)
            if new_ids:
                if new_tags:
                    known_tags.learn(new_ids, new_tags)
                table.add_blocks(new_ids, new_tags)
                known_tags.hold(table.held_ids[-len(new_ids) :])
            if num_dropped:
                known_tags.let_go(table.drop(num_dropped))

    def agrees_with(self, known: Sequence[BlockTags]) -> bool:
        """True unless a block of one of the tables has become another's."""
        pairs = zip(self.tables, known, strict=True)
        return all(table.agrees_with(known_tags) for table, known_tags in pairs)

    def let_go(self, known: Sequence[BlockTags]) -> None:
        """Gives up all blocks, of which `known` is told."""
        for table, known_tags in zip(self.tables, known, strict=True):
            known_tags.let_go(table.held_ids)

    def schedule(self, num_tokens: int, num_drafts: int, block_size: int) -> tuple[Span, ...]:
        """The span in each group of the next `num_tokens` known ones and the drafts behind them."""
        assert num_tokens > 0, "scheduled no token"
        start = self.num_computed
        assert start + num_tokens <= len(self.token_ids) + self.num_pending, "unknown tokens"
        return tuple(
            [table.create_span(start, num_tokens + num_drafts, block_size) for table in self.tables]
        )

    def to_sampling_rows(
        self, drafts: tuple[int, ...], allowed_tokens: bytes | None
    ) -> list[SamplingRow]:
        """What the sampler needs to draw the token behind the newest and behind each draft."""
        assert not (drafts and (self._counts or allowed_tokens)), "drafts with a history"
        first = len(self.token_ids) + self.num_pending
        sampling, counts, words = self.sampling, self._counts, self._bad_words
        return [
            SamplingRow(
                sampling, first + n, counts, allowed_tokens, words, drafts[:n], self._biases
            )
            for n in range(len(drafts) + 1)
        ]

    def append(self, token_ids: Sequence[int], *, is_counted: bool = False) -> None:
        """Takes drawn tokens, which penalties and bad words look at from now on if they did not.

        What stands for no token ends the sequence; steps that are planned go on as if behind the
        first of the vocabulary.
        """
        token_ids = [max(token_id, 0) for token_id in token_ids]
        self.token_ids += token_ids
        if self._counts is not None and not is_counted:
            for token_id in token_ids:
                self._counts.add(token_id)
        if self._bad_words is not None and not is_counted:
            for token_id in token_ids:
                self._bad_words.add(token_id)

    def count_drawn(self, token_ids: Tensor) -> None:
        """Lets penalties and bad words look at tokens that may still be on their way."""
        if self._counts is not None:
            self._counts.add_drawn(token_ids)
        if self._bad_words is not None:
            self._bad_words.add_drawn(token_ids)
