"""Blocks in memory: never more than the books say, whatever their sizes."""

from hypothesis import given
from hypothesis import strategies as st

from contracts.ids import AccountId
from gpu_pool.kv.tiers.host_tier import HostTier
from gpu_pool.kv.tiers.namespace import TierNamespace
from gpu_pool.kv.tiers.settings import HostTierSettings
from tests.gpu_pool.kv.tiers.blocks import blank, create_space, fill, name_blocks

MAX_BYTES, ACCOUNT_BYTES = 100, 60
SPACES = [create_space(AccountId(letter * 32)) for letter in "abcdef"]
NAMES = {space: name_blocks(space, 6) for space in SPACES}

Keep = tuple[TierNamespace, int, int]
"""Whose, which block, and its bytes."""

keeps = st.lists(
    st.tuples(st.sampled_from(SPACES), st.integers(0, 5), st.integers(1, 70)), max_size=40
)


@given(keeps)
def test_what_is_there_is_what_the_books_say(keeps: list[Keep]) -> None:
    """Also where a newcomer has to go at once, since nobody holds as much as it does."""
    tier = HostTier(HostTierSettings(max_bytes=MAX_BYTES, account_bytes=ACCOUNT_BYTES))
    sizes: dict[tuple[TierNamespace, int], int] = {}
    for space, number, num_bytes in keeps:
        name = NAMES[space][number]
        was_there = tier.has(space, name)
        is_kept = tier.keep(space, name, fill(number, num_bytes))
        if is_kept:
            sizes[space, number] = num_bytes
        assert tier.has(space, name) == (is_kept or was_there)
    there = [(s, n) for s, names in NAMES.items() for n in range(6) if tier.has(s, names[n])]
    for space, number in there:
        block = blank(sizes[space, number])
        assert tier.fetch(space, NAMES[space][number], block)
        assert block == fill(number, len(block))
    assert sum(sizes[place] for place in there) == tier.books.num_bytes <= MAX_BYTES


def test_a_newcomer_that_nobody_could_make_room_for_is_not_kept() -> None:
    tier = HostTier(HostTierSettings(max_bytes=MAX_BYTES, account_bytes=ACCOUNT_BYTES))
    for space in SPACES[:2]:
        assert tier.keep(space, NAMES[space][0], blank(50))
    for space in SPACES[2:]:
        assert not tier.keep(space, NAMES[space][0], blank(60))
        assert not tier.has(space, NAMES[space][0])
    assert tier.books.num_bytes == MAX_BYTES
