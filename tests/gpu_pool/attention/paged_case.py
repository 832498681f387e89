"""Random paged attention problems and their float64 answers."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gpu_pool.attention.batch import Span
from gpu_pool.attention.kv_cache import KvCache, KvShape
from gpu_pool.attention.padding import pad_context

MAX_CONTEXT = 1024


@dataclass(frozen=True, slots=True)
class PagedCase:
    """Sequences with their whole history, whose last `num_tokens` are computed in this step."""

    cache: KvCache
    spans: list[Span]
    histories: list[Tensor]
    """`[context, 2, K, H]` of each sequence."""
    q_TNH: Tensor

    @property
    def kv_TE(self) -> Tensor:
        """Keys and values of the step's own tokens."""
        parts = [h[s.start :] for h, s in zip(self.histories, self.spans, strict=True)]
        return torch.cat(parts).flatten(1)


def create_case(
    spans: list[tuple[int, int]],
    *,
    num_heads: int,
    shape: KvShape,
    layer: int = 0,
    dtype: torch.dtype = torch.float32,
) -> PagedCase:
    """Spans of (start, num_tokens) over shuffled blocks; what precedes `start` is in the cache."""
    counts = [-(-(start + num) // shape.block_size) for start, num in spans]
    cache = KvCache(shape, sum(counts) + 3, dtype, torch.device("cpu"))
    block_ids = torch.randperm(sum(counts) + 3).tolist()
    built: list[Span] = []
    histories: list[Tensor] = []
    for (start, num_tokens), count in zip(spans, counts, strict=True):
        own = [block_ids.pop() for _ in range(count)]
        table = np.full(pad_context(MAX_CONTEXT) // shape.block_size, own[-1], dtype=np.int64)
        table[:count] = own
        history = torch.randn(start + num_tokens, 2, shape.num_kv_heads, shape.head_dim).to(dtype)
        for position in range(start):
            block, offset = divmod(position, shape.block_size)
            cache.blocks[own[block], layer, offset] = history[position]
        built.append(Span(start, num_tokens, table))
        histories.append(history)
    total = sum(num for _, num in spans)
    q_TNH = torch.randn(total, num_heads, shape.head_dim).to(dtype)
    return PagedCase(cache, built, histories, q_TNH)


def attend_in_float64(case: PagedCase) -> Tensor:
    """Softmax attention of every token over its own history, in plain matrices."""
    outputs: list[Tensor] = []
    queries = case.q_TNH.double().split([span.num_tokens for span in case.spans])
    for span, history, q_TNH in zip(case.spans, case.histories, queries, strict=True):
        group = q_TNH.shape[1] // history.shape[2]
        keys, values = history.double().repeat_interleave(group, 2).unbind(1)
        scores = torch.einsum("tnh,lnh->ntl", q_TNH, keys) / q_TNH.shape[2] ** 0.5
        is_later = torch.arange(span.end) > torch.arange(span.start, span.end)[:, None]
        weights = scores.masked_fill(is_later, float("-inf")).softmax(-1)
        outputs.append(torch.einsum("ntl,lnh->tnh", weights, values))
    return torch.cat(outputs)
