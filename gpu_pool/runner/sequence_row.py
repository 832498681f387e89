"""The tensor side's state of one sequence: its tokens, how far they are computed, its blocks.

Owned by the model runner and changed only there; must not know the scheduler's `Sequence`.
"""

import numpy as np
import torch

from gpu_pool.attention.batch import Span
from gpu_pool.attention.kv_cache import Int64Array
from gpu_pool.plan import BlockId, NewSequence
from gpu_pool.sampling.penalties import TokenCounts, has_penalties
from gpu_pool.sampling.sampler import SamplingRow


class SequenceRow:
    """One sequence between its first plan and its release."""

    __slots__ = ("_block_table", "_counts", "_num_blocks", "_sampling", "num_computed", "token_ids")

    def __init__(
        self, new: NewSequence, *, table_size: int, vocab_size: int, device: torch.device
    ) -> None:
        """A row without blocks; `table_size` is the most it can have, padding included."""
        assert 0 <= new.num_computed_tokens < len(new.token_ids), "nothing is left to compute"
        assert min(new.token_ids) >= 0, "negative token id"
        assert max(new.token_ids) < vocab_size, "token id outside the vocabulary"
        self.token_ids = list(new.token_ids)
        self.num_computed = new.num_computed_tokens
        """Leading tokens whose keys and values are in the blocks."""
        self._block_table: Int64Array = np.zeros(table_size, dtype=np.int64)
        self._num_blocks = 0
        self._sampling = new.sampling
        self._counts: TokenCounts | None = None
        if has_penalties(new.sampling):
            prompt = new.token_ids[: new.num_prompt_tokens]
            output = new.token_ids[new.num_prompt_tokens :]
            self._counts = TokenCounts(prompt, output, vocab_size, device)

    def add_blocks(self, block_ids: tuple[BlockId, ...]) -> None:
        """Appends blocks to the table."""
        end = self._num_blocks + len(block_ids)
        assert end <= self._block_table.shape[0], "more blocks than the context can hold"
        self._block_table[self._num_blocks : end] = block_ids
        # Padded contexts read the sequence's own last block again, never a neighbour's.
        self._block_table[end:] = block_ids[-1]
        self._num_blocks = end

    def schedule(self, num_tokens: int, block_size: int) -> Span:
        """The span of the next `num_tokens`."""
        span = Span(self.num_computed, num_tokens, self._block_table)
        assert num_tokens > 0, "scheduled no token"
        assert span.end <= len(self.token_ids), "scheduled unknown tokens"
        assert span.end <= self._num_blocks * block_size, "scheduled without blocks"
        return span

    def list_stale_blocks(self, num_new: int, span: Span, block_size: int) -> list[int]:
        """The newest `num_new` blocks less those that hold computed tokens or are written whole."""
        first_empty = max(-(-span.start // block_size), span.end // block_size)
        return self._block_table[
            max(self._num_blocks - num_new, first_empty) : self._num_blocks
        ].tolist()

    def to_sampling_row(self) -> SamplingRow:
        """What the sampler needs to draw the token behind the last known one."""
        return SamplingRow(self._sampling, len(self.token_ids), self._counts)

    def append(self, token_id: int) -> None:
        """Takes the drawn token."""
        self.token_ids.append(token_id)
        if self._counts is not None:
            self._counts.add(token_id)
