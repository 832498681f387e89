"""Random paged attention problems and their float64 answers."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gpu_pool.attention.batch import Span
from gpu_pool.attention.kv_cache import KvCache, KvShape
from gpu_pool.attention.padding import pad_context
from gpu_pool.attention.reach import FULL_REACH, Reach
from gpu_pool.kernels.attention_form import PLAIN, AttentionForm
from gpu_pool.plan import KvGroupKind

MAX_CONTEXT = 1024


@dataclass(frozen=True, slots=True)
class PagedCase:
    """Sequences with their whole history, whose last `num_tokens` are computed in this step."""

    cache: KvCache
    spans: list[Span]
    histories: list[Tensor]
    """`[context, parts, K, H]` of each sequence."""
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
        history = torch.randn(
            start + num_tokens, shape.num_parts, shape.num_kv_heads, shape.head_dim
        )
        history = history.to(dtype)
        for position in range(start):
            block, offset = divmod(position, shape.block_size)
            cache.blocks[own[block], layer, offset] = history[position]
        built.append(Span(start, num_tokens, table))
        histories.append(history)
    total = sum(num for _, num in spans)
    q_TNH = torch.randn(total, num_heads, shape.head_dim).to(dtype)
    return PagedCase(cache, built, histories, q_TNH)


def attend_in_float64(
    case: PagedCase, reach: Reach = FULL_REACH, form: AttentionForm = PLAIN
) -> Tensor:
    """Softmax attention of every token over what it sees of its history, in plain matrices."""
    outputs: list[Tensor] = []
    queries = case.q_TNH.double().split([span.num_tokens for span in case.spans])
    for span, history, q_TNH in zip(case.spans, case.histories, queries, strict=True):
        group = q_TNH.shape[1] // history.shape[2]
        parts = history.double().repeat_interleave(group, 2)
        keys, values = parts[:, 0], parts[:, -1, :, : form.value_dim]
        scale = form.scale or q_TNH.shape[2] ** -0.5
        scores = torch.einsum("tnh,lnh->ntl", q_TNH, keys) * scale
        if form.softcap is not None:
            scores = torch.tanh(scores / form.softcap) * form.softcap
        scores = scores.masked_fill(_list_hidden(span, reach), float("-inf"))
        if form.sinks_N is not None:
            column = form.sinks_N.double()[:, None, None].expand(-1, span.num_tokens, 1)
            scores = torch.cat((scores, column), -1)
        weights = scores.softmax(-1)[..., : span.end]
        outputs.append(torch.einsum("ntl,lnh->tnh", weights, values))
    return torch.cat(outputs)


def _list_hidden(span: Span, reach: Reach) -> Tensor:
    """Which positions a token does not see, `[T, L]`."""
    query, key = torch.arange(span.start, span.end)[:, None], torch.arange(span.end)
    hidden = key > query
    if reach.kind is KvGroupKind.SLIDING_WINDOW:
        assert reach.num_tokens is not None
        hidden |= query - key >= reach.num_tokens
    if reach.kind is KvGroupKind.CHUNKED:
        assert reach.num_tokens is not None
        hidden |= query // reach.num_tokens != key // reach.num_tokens
    return hidden
