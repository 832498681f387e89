"""What a node tells of prompts' beginnings: what is new, all of it to whoever has just come."""

from contracts.prefix_keys import KEY_BYTES, MAX_TOLD_BYTES, pack_keys, unpack_keys
from gpu_pool.server.recent_prefixes import AGAIN_S, RecentPrefixes
from gpu_pool.server.recent_sessions import TOLD_S
from tests.gpu_pool.server.test_recent_sessions import Clock


def list_news(prefixes: RecentPrefixes) -> list[int]:
    """What a gateway hears that has listened before."""
    return list(unpack_keys(prefixes.pack_news()))


def test_what_is_new_is_told_for_a_while_the_shortest_beginning_last() -> None:
    clock = Clock()
    prefixes = RecentPrefixes(clock)
    prefixes.note(pack_keys((1, 2, 3)))
    clock.now_s = 1.0
    prefixes.note(pack_keys((1, 2, 4)))  # another end of the same beginning
    assert list_news(prefixes) == [3, 2, 1, 4]
    clock.now_s = 1.0 + TOLD_S
    assert list_news(prefixes) == [4]
    clock.now_s += 0.001
    assert list_news(prefixes) == []
    assert unpack_keys(prefixes.pack_all()) == (3, 4, 2, 1)


def test_what_stays_in_use_is_told_again_after_a_while() -> None:
    clock = Clock()
    prefixes = RecentPrefixes(clock)
    for second in range(int(AGAIN_S) + 2):
        clock.now_s = float(second)
        prefixes.note(pack_keys((7,)))
        assert (list_news(prefixes) == [7]) == (second <= TOLD_S or second > AGAIN_S), second


def test_no_more_is_told_than_a_report_may_hold_and_the_latest_of_it() -> None:
    prefixes = RecentPrefixes(Clock())
    count = MAX_TOLD_BYTES // KEY_BYTES
    for first in range(0, count + 128, 64):
        prefixes.note(pack_keys(range(first, first + 64)))
    for packed in (prefixes.pack_news(), prefixes.pack_all()):
        assert set(unpack_keys(packed)) == set(range(128, count + 128))


def test_of_a_request_that_names_nothing_nothing_is_told() -> None:
    prefixes = RecentPrefixes(Clock())
    prefixes.note(b"")
    assert (prefixes.pack_news(), prefixes.pack_all()) == (b"", b"")
