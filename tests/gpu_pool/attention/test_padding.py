"""Padded contexts."""

from hypothesis import given
from hypothesis import strategies as st

from gpu_pool.attention.padding import GRANULE_TOKENS, pad_context


@given(st.integers(1, 200_000))
def test_a_padded_context_holds_all_tokens_in_whole_granules(num_tokens: int) -> None:
    padded = pad_context(num_tokens)
    assert padded >= num_tokens
    assert padded % GRANULE_TOKENS == 0
    assert pad_context(padded) == padded


@given(st.integers(1, 200_000))
def test_no_piece_of_512_keys_ends_where_summation_would_change(num_tokens: int) -> None:
    assert pad_context(num_tokens) % 512 not in (256, 320)


def test_long_contexts_share_few_lengths() -> None:
    assert len({pad_context(n) for n in range(1, 513)}) == 6
    assert len({pad_context(n) for n in range(513, 2049)}) == 9
    assert len({pad_context(n) for n in range(2049, 8193)}) == 12


def test_padding_never_shrinks_with_length() -> None:
    padded = [pad_context(n) for n in range(1, 5000)]
    assert padded == sorted(padded)
