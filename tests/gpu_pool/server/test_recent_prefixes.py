"""What a node tells of prompts' beginnings: what is new, all of it to whoever has just come."""

from contracts.ids import AccountId
from contracts.prefix_keys import KEY_BYTES, MAX_PROMPT_KEYS, MAX_TOLD_BYTES, pack_keys, unpack_keys
from gpu_pool.server.recent_prefixes import AGAIN_S, KEPT_S, WHOLE_S, RecentPrefixes
from gpu_pool.server.recent_sessions import TOLD_S
from tests.gpu_pool.server.test_recent_sessions import Clock

A, B = AccountId("a"), AccountId("b")
MAX_KEPT = MAX_TOLD_BYTES // KEY_BYTES


def list_news(prefixes: RecentPrefixes) -> list[int]:
    """What a gateway hears that has listened before."""
    return list(unpack_keys(prefixes.pack_news()))


def test_what_is_new_is_told_for_a_while_the_shortest_beginning_last() -> None:
    clock = Clock()
    prefixes = RecentPrefixes(clock)
    prefixes.note(A, pack_keys((1, 2, 3)))
    clock.now_s = 1.0
    prefixes.note(A, pack_keys((1, 2, 4)))  # another end of the same beginning
    assert list_news(prefixes) == [3, 2, 1, 4]
    clock.now_s = 1.001 + TOLD_S
    assert 4 in list_news(prefixes)
    assert list_news(prefixes) == []
    assert unpack_keys(prefixes.pack_all()) == (3, 4, 2, 1)


def test_nothing_is_passed_over_however_late_a_report_is() -> None:
    clock = Clock()
    prefixes = RecentPrefixes(clock)
    prefixes.note(A, pack_keys((1,)))
    clock.now_s = 10 * TOLD_S
    assert list_news(prefixes) == [1]
    assert list_news(prefixes) == []


def test_what_stays_in_use_is_told_again_after_a_while() -> None:
    clock = Clock()
    prefixes = RecentPrefixes(clock)
    for second in range(int(AGAIN_S) + 2):
        clock.now_s = float(second)
        prefixes.note(A, pack_keys((7,)))
        is_told = second <= TOLD_S + 1 or second > AGAIN_S  # until a report has come without it
        assert (list_news(prefixes) == [7]) == is_told, second


def test_a_prompt_that_has_grown_is_told_from_its_beginning() -> None:
    clock = Clock()
    prefixes = RecentPrefixes(clock)
    prefixes.note(A, pack_keys((1, 2)))
    clock.now_s = WHOLE_S + 1
    list_news(prefixes)
    prefixes.note(A, pack_keys((1, 2)))
    assert list_news(prefixes) == []
    prefixes.note(A, pack_keys((1, 2, 3)))
    assert list_news(prefixes) == [3, 2, 1]


def test_no_more_is_told_than_a_report_may_hold_and_the_latest_of_it() -> None:
    prefixes = RecentPrefixes(Clock())
    for first in range(0, MAX_KEPT + 128, 64):
        prefixes.note(A, pack_keys(range(first, first + 64)))
    for packed in (prefixes.pack_news(), prefixes.pack_all()):
        assert set(unpack_keys(packed)) == set(range(128, MAX_KEPT + 128))


def test_an_account_that_asks_without_end_crowds_out_nobody_else() -> None:
    prefixes = RecentPrefixes(Clock())
    prefixes.note(B, pack_keys((1, 2, 3)))
    for first in range(1000, 1000 + 3 * MAX_KEPT, MAX_PROMPT_KEYS):
        prefixes.note(A, pack_keys(range(first, first + MAX_PROMPT_KEYS)))
    told = unpack_keys(prefixes.pack_all())
    assert len(told) == MAX_KEPT
    assert {1, 2, 3} <= set(told)
    assert {1, 2, 3} <= set(list_news(prefixes))


def test_of_what_nobody_has_asked_for_long_nothing_is_told() -> None:
    clock = Clock()
    prefixes = RecentPrefixes(clock)
    prefixes.note(A, pack_keys((1,)))
    clock.now_s = KEPT_S / 2
    prefixes.note(A, pack_keys((2,)))
    clock.now_s = KEPT_S + 1
    assert unpack_keys(prefixes.pack_all()) == (2,)


def test_of_a_request_that_names_nothing_nothing_is_told_and_of_none_more_than_a_prompt_has() -> (
    None
):
    prefixes = RecentPrefixes(Clock())
    prefixes.note(A, b"")
    assert (prefixes.pack_news(), prefixes.pack_all()) == (b"", b"")
    prefixes.note(A, pack_keys(range(400_000)))
    assert len(unpack_keys(prefixes.pack_all())) == MAX_PROMPT_KEYS
