"""Bounds of the tiers: for each account, for all together, and who has to go."""

from hypothesis import given
from hypothesis import strategies as st

from gpu_pool.kv.tiers.shelves import Entry, Shelves

OWNERS = ("a", "b", "c")
MAX_BYTES, ACCOUNT_BYTES = 100, 40

moves = st.lists(
    st.tuples(
        st.sampled_from(["put", "touch", "remove"]),
        st.sampled_from(OWNERS),
        st.integers(0, 9),
        st.integers(1, 30),
    ),
    max_size=60,
)


@given(moves)
def test_no_bound_is_ever_passed_and_nothing_gets_lost(moves: list[tuple[str, str, int, int]]):
    shelves = Shelves(MAX_BYTES, ACCOUNT_BYTES)
    there: set[Entry] = set()
    for kind, owner, number, num_bytes in moves:
        entry = Entry(owner, str(number))
        if kind == "put" and entry not in there:
            gone = shelves.put(entry, num_bytes)
            there = (there | {entry}) - set(gone)
        elif kind == "touch":
            shelves.touch(entry)
        elif kind == "remove":
            shelves.remove(entry)
            there.discard(entry)
        shelves.check()
        assert all(
            shelves.has(Entry(o, str(n))) == (Entry(o, str(n)) in there)
            for o in OWNERS
            for n in range(10)
        )


def test_an_account_beyond_its_quota_loses_what_it_used_longest_ago() -> None:
    shelves = Shelves(100, 30)
    for name in "123":
        assert shelves.put(Entry("a", name), 10) == []
    shelves.touch(Entry("a", "1"))
    assert shelves.put(Entry("b", "1"), 30) == []
    assert shelves.put(Entry("a", "4"), 10) == [Entry("a", "2")]


def test_an_account_that_holds_less_loses_nothing_to_one_that_holds_more() -> None:
    shelves = Shelves(100, 80)
    assert shelves.put(Entry("small", "1"), 20) == []
    for number in range(50):
        gone = shelves.put(Entry("large", str(number)), 10)
        assert all(entry.owner == "large" for entry in gone)
    assert shelves.has(Entry("small", "1"))
    assert (shelves.count_bytes("small"), shelves.num_bytes) == (20, 100)


def test_without_a_quota_an_account_may_hold_half() -> None:
    shelves = Shelves(100, None)
    assert shelves.fits(50)
    assert not shelves.fits(51)
