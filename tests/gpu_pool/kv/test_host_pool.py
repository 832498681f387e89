"""Host blocks that a plan still touches are nobody else's."""

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.ids import AccountId
from gpu_pool.kv.host_pool import HostPool
from gpu_pool.plan import BlockId, HostBlockId


def test_what_a_plan_frees_is_free_when_its_result_is_there() -> None:
    pool = HostPool(0, 2)
    taken = pool.move_out([BlockId(5), BlockId(6)])
    assert pool.num_free == 0
    pool.take_moves()
    pool.note_done()
    pool.move_in(taken, [BlockId(7), BlockId(8)])
    assert len(pool.take_moves().back) == 2
    assert pool.num_free == 0  # the plan clears them when it is carried out
    with pytest.raises(AssertionError):
        pool.reserve(1)
    pool.note_done()
    assert sorted(pool.reserve(2)) == sorted(taken)


def test_reserved_blocks_are_free_as_soon_as_they_are_given_back() -> None:
    pool = HostPool(0, 3)
    reserved = pool.reserve(2)
    pool.copy_out([BlockId(4)], reserved[:1])
    assert [move.host_id for move in pool.take_moves().copied] == [reserved[0]]
    pool.check(num_held=2)
    pool.give_back(reserved)
    assert pool.num_free == 3


@given(
    num_blocks=st.integers(1, 400),
    orders=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 200)), max_size=40),
)
def test_whatever_others_keep_a_newcomer_finds_room(
    num_blocks: int, orders: list[tuple[int, int]]
) -> None:
    """Nobody ever gives anything back: what accounts keep for other nodes leaves a quarter of all
    blocks and room for who has nothing, unless so little is left that it cannot be divided.
    """
    pool = HostPool(0, num_blocks)
    held: Counter[int] = Counter()
    for account, count in orders:
        if pool.fits_firmly(count, held[account], held.total()):
            pool.reserve(count)
            held[account] += count
    room = 3 * num_blocks // 4
    assert held.total() <= room
    assert all(count <= num_blocks // 2 for count in held.values())
    smallest = min((count for count in held.values() if count), default=0)
    assert room - held.total() >= min(smallest, room - num_blocks // 2)
    assert pool.fits_firmly((room - held.total()) // 2, 0, held.total())


def test_each_further_account_that_takes_all_it_gets_still_leaves_some() -> None:
    """Each takes block by block; the first has half of all, and none of them the last block."""
    pool = HostPool(0, 256)
    kept: list[int] = []
    for _ in range(5):
        num_own = next(n for n in itertools.count() if not pool.fits_firmly(1, n, sum(kept) + n))
        kept.append(num_own)
        pool.reserve(num_own)
    assert kept == [128, 32, 16, 8, 4]


def test_an_order_of_nothing_fits_where_nothing_is_left() -> None:
    pool = HostPool(0, 4)
    assert pool.fits_firmly(0, 2, 3)
    assert not pool.fits_firmly(1, 0, 3)


_Moves = st.lists(
    st.tuples(
        st.integers(0, 3), st.sampled_from(["land", "fetch", "leave", "return"]), st.integers(0, 99)
    ),
    max_size=60,
)
"""Whose, what, and how much of what is possible in hundredths."""


@given(num_blocks=st.integers(4, 400), moves=_Moves)
def test_whatever_others_bring_a_newcomer_finds_room_to_land(
    num_blocks: int, moves: list[tuple[int, str, int]]
) -> None:
    """Hand-overs, fetches and what leaves the device, all as much as they like within what they
    may, and come back in any order: who takes no more than is allowed leaves as many as it has, or
    a quarter of all, so that half of whatever is free is a newcomer's.
    """
    pool = HostPool(0, num_blocks)
    held: dict[int, list[HostBlockId]] = {account: [] for account in range(4)}
    away: list[HostBlockId] = []
    enough = 3 * num_blocks // 4 - num_blocks // 2
    for account, move, part in moves:
        name, own = AccountId(str(account)), held[account]
        if move == "leave":
            away += pool.reserve(pool.num_spare * part // 100)
        elif move == "return":
            count = len(own) * part // 100
            pool.give_back(own[:count])
            del own[:count]
        else:
            room = pool.count_landable(name) if move == "land" else pool.count_fetchable(name)
            count = room * (part + 1) // 100
            own += pool.land(count, name)
            assert not count or pool.num_free >= min(len(own), enough)
        pool.check(len(away) + sum(map(len, held.values())))
        assert pool.count_landable(AccountId("new")) >= pool.num_free // 2
    assert all(len(own) <= num_blocks - enough for own in held.values())


def test_each_further_account_that_lands_all_it_may_still_leaves_some() -> None:
    """The first has three quarters; the control, one block more, is beyond what it may have."""
    pool, landed = HostPool(0, 256), list[int]()
    for name in map(AccountId, "abcde"):
        num_before = pool.num_free
        while pool.count_landable(name):
            pool.land(1, name)
        landed.append(num_before - pool.num_free)
        assert pool.num_free > 0, "there would be a block"
    assert landed == [192, 32, 16, 8, 4]
