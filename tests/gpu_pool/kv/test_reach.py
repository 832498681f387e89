"""Which blocks are still read, against a plain definition of who sees whom."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_pool.kv.reach import Reach
from gpu_pool.plan import KvGroup, KvGroupKind

LOCAL = (KvGroupKind.SLIDING_WINDOW, KvGroupKind.CHUNKED)


def sees(kind: KvGroupKind, window: int, query: int, key: int) -> bool:
    """True when the token at `query` attends to the one at `key`."""
    if kind is KvGroupKind.SLIDING_WINDOW:
        return query - window < key <= query
    return key <= query and key // window == query // window


@given(
    kind=st.sampled_from(LOCAL),
    window=st.integers(1, 40),
    block_size=st.integers(1, 9),
    position=st.integers(0, 200),
)
def test_the_first_block_is_that_of_the_first_token_anyone_still_sees(
    kind: KvGroupKind, window: int, block_size: int, position: int
) -> None:
    reach = Reach(KvGroup(kind, 1, 1, window), block_size)
    later = range(position, position + 2 * window)
    first = min(
        key for query in later for key in range(query + 1) if sees(kind, window, query, key)
    )
    assert reach.find_first_block(position) == first // block_size


@pytest.mark.parametrize("kind", [KvGroupKind.FULL, KvGroupKind.MLA_LATENT])
def test_other_groups_read_everything(kind: KvGroupKind) -> None:
    reach = Reach(KvGroup(kind, 1, 1), 4)
    assert not reach.is_local
    assert reach.find_first_block(1000) == 0
    assert reach.count_blocks(1001, 64) == 251


@given(
    kind=st.sampled_from(LOCAL),
    window=st.integers(1, 30),
    block_size=st.integers(1, 8),
    chunks=st.lists(st.integers(1, 12), min_size=1, max_size=30),
)
def test_a_ring_holds_all_that_a_sequence_ever_needs_at_once(
    kind: KvGroupKind, window: int, block_size: int, chunks: list[int]
) -> None:
    reach = Reach(KvGroup(kind, 1, 1, window), block_size)
    ring = reach.count_blocks(sum(chunks), max(chunks))
    position = 0
    for chunk in chunks:
        held = -(-(position + chunk) // block_size) - reach.find_first_block(position)
        assert held <= ring
        position += chunk
    assert reach.fit_step(ring) > 0


@given(
    kind=st.sampled_from(LOCAL),
    window=st.integers(1, 30),
    block_size=st.integers(1, 8),
    num_blocks=st.integers(1, 40),
)
def test_what_is_too_small_for_a_ring_is_filled_by_a_sequence_and_no_more(
    kind: KvGroupKind, window: int, block_size: int, num_blocks: int
) -> None:
    reach = Reach(KvGroup(kind, 1, 1, window), block_size)
    num_tokens, most = num_blocks * block_size, reach.fit_step(num_blocks)
    assert reach.count_blocks(num_tokens, most) == num_blocks
    has_ring = num_tokens > window + block_size
    assert (reach.count_blocks(num_tokens + 1, most) == num_blocks) == has_ring
