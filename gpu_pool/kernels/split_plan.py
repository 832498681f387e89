"""Cuts the contexts of a step into items of work for the kernels that attend with single tokens.

What a sequence's last token sees is cut into at most `MAX_SPLITS` splits of 128 keys, or of 256,
512 and so on where it sees more: by the sequence's own length alone, so that its result does not
change with its neighbours. Made on the device, once per step and KV group, for all layers.
Shapes: B sequences, Z items that there is room for. Lengths, items and bounds are int32.
Read next: `split_decode`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_pool.kernels.paged_attention import find_first
from gpu_pool.kernels.triton_language import jit, next_power_of_2, tl, uses_triton

MIN_SPLIT_KEYS = 128
MAX_SPLITS = 32
_DOUBLINGS = 16
"""Splits of a context of 2²⁸ tokens."""


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """Who is mixed in which pieces. Items behind the last one are not filled in."""

    bounds_B: Tensor
    """`[B + 1]`: sequence b has the items `bounds_B[b]` to `bounds_B[b + 1]`."""
    items_Z3: Tensor
    """Sequence, first key and end of each item."""


def count_splits(num_seen: int) -> int:
    """Splits of a token that sees so many keys."""
    return -(-num_seen // choose_split_keys(num_seen))


def choose_split_keys(num_seen: int) -> int:
    """Keys of a split of a token that sees so many."""
    split_keys = MIN_SPLIT_KEYS
    while num_seen > split_keys * MAX_SPLITS:
        split_keys *= 2
    return split_keys


def count_items(num_sequences: int, max_length: int, window: int) -> int:
    """Room for the items of so many sequences, none of them longer than `max_length`."""
    most_seen = min(max_length, window or max_length)
    return num_sequences * min(MAX_SPLITS, -(-most_seen // MIN_SPLIT_KEYS))


def plan_splits_reference(
    lengths_B: Tensor, max_length: int, window: int, is_chunked: bool
) -> SplitPlan:
    """The plan, in plain Python."""
    items: list[tuple[int, int, int]] = []
    bounds = [0]
    for sequence, length in enumerate(lengths_B.tolist()):
        start = find_seen_start(length, window, is_chunked)
        split_keys = choose_split_keys(length - start)
        items += [
            (sequence, first, min(first + split_keys, length))
            for first in range(start, length, split_keys)
        ]
        bounds.append(len(items))
    num_items = count_items(len(bounds) - 1, max_length, window)
    assert len(items) <= num_items, "a context is longer than `max_length`"
    items_Z3 = torch.zeros((num_items, 3), dtype=torch.int32)
    items_Z3[: len(items)] = torch.tensor(items, dtype=torch.int32).view(-1, 3)
    return SplitPlan(
        torch.tensor(bounds, dtype=torch.int32, device=lengths_B.device),
        items_Z3.to(lengths_B.device),
    )


def find_seen_start(length: int, window: int, is_chunked: bool) -> int:
    """The first position that the last token of a context sees."""
    if not window:
        return 0
    if is_chunked:
        return max(0, length - 1) // window * window
    return max(0, length - window)


@jit
def _cut_context(
    lengths,
    window,
    IS_CHUNKED: tl.constexpr,
    MIN_KEYS: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
    DOUBLINGS: tl.constexpr,
):
    """First position seen, keys of a split, and number of splits."""
    starts = find_first(tl.maximum(lengths - 1, 0), window, IS_CHUNKED)
    num_seen = lengths - starts
    split_keys = tl.zeros_like(lengths) + MIN_KEYS
    for _ in tl.static_range(DOUBLINGS):
        split_keys = tl.where(num_seen > split_keys * MAX_SPLITS, split_keys * 2, split_keys)
    return starts, split_keys, (num_seen + split_keys - 1) // split_keys


@jit
def _plan_splits_kernel(
    lengths_ptr,
    bounds_ptr,
    items_ptr,
    num_sequences,
    window,
    BATCH: tl.constexpr,
    IS_CHUNKED: tl.constexpr,
    MIN_KEYS: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
    DOUBLINGS: tl.constexpr,
):
    """One sequence per program, which counts the splits of all before it."""
    sequence = tl.program_id(0)
    others = tl.arange(0, BATCH)
    lengths = tl.load(lengths_ptr + others, mask=others < sequence, other=0)
    _, _, counts = _cut_context(lengths, window, IS_CHUNKED, MIN_KEYS, MAX_SPLITS, DOUBLINGS)
    first_item = tl.sum(tl.where(others < sequence, counts, 0), 0)
    length = tl.load(lengths_ptr + sequence)
    start, split_keys, count = _cut_context(
        length, window, IS_CHUNKED, MIN_KEYS, MAX_SPLITS, DOUBLINGS
    )
    tl.store(bounds_ptr + sequence, first_item)
    if sequence == num_sequences - 1:
        tl.store(bounds_ptr + num_sequences, first_item + count)
    splits = tl.arange(0, MAX_SPLITS)
    is_split = splits < count
    firsts = start + splits * split_keys
    item_ptr = items_ptr + (first_item + splits) * 3
    tl.store(item_ptr, tl.zeros_like(splits) + sequence, mask=is_split)
    tl.store(item_ptr + 1, firsts, mask=is_split)
    tl.store(item_ptr + 2, tl.minimum(firsts + split_keys, length), mask=is_split)


def plan_splits_triton(
    lengths_B: Tensor, max_length: int, window: int, is_chunked: bool
) -> SplitPlan:
    """The plan, by triton."""
    num_sequences = lengths_B.shape[0]
    num_items = count_items(num_sequences, max_length, window)
    bounds_B = torch.empty(num_sequences + 1, dtype=torch.int32, device=lengths_B.device)
    items_Z3 = torch.empty((num_items, 3), dtype=torch.int32, device=lengths_B.device)
    _plan_splits_kernel[(num_sequences,)](
        lengths_B,
        bounds_B,
        items_Z3,
        num_sequences,
        window,
        BATCH=next_power_of_2(num_sequences),
        IS_CHUNKED=is_chunked,
        MIN_KEYS=MIN_SPLIT_KEYS,
        MAX_SPLITS=MAX_SPLITS,
        DOUBLINGS=_DOUBLINGS,
        num_warps=4,
    )
    return SplitPlan(bounds_B, items_Z3)


def plan_splits(
    lengths_B: Tensor, max_length: int, window: int = 0, is_chunked: bool = False
) -> SplitPlan:
    """The plan of single tokens, each the last of its context; no length is above `max_length`.

    `window` is what a token sees at most, itself included (0: all), or with `is_chunked` the size
    of the chunk of which it sees what precedes it.
    """
    assert lengths_B.shape[0] > 0, "there is no sequence"
    if uses_triton(lengths_B):
        return plan_splits_triton(lengths_B, max_length, window, is_chunked)
    return plan_splits_reference(lengths_B, max_length, window, is_chunked)
