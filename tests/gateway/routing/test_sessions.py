"""Sessions are found where they were last; nobody's end another account's."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.ids import NodeId
from gateway.routing.sessions import SessionMap, choose_first_place

A, B, C = (NodeId(name) for name in "abc")


def test_sessions_are_bounded_in_number_and_in_time() -> None:
    sessions = SessionMap(max_sessions=2, idle_s=10.0)
    for number, node_id in enumerate((A, B, C)):
        sessions.pin(0, number, node_id, 0.0)
    assert [sessions.find(0, number, 1.0) for number in range(3)] == [None, B, C]
    assert sessions.find(0, 1, 11.0) is None
    assert len(sessions) == 2


def test_a_session_that_came_in_elsewhere_is_found_where_a_node_says_it_is() -> None:
    sessions = SessionMap(max_sessions=2, idle_s=10.0)
    sessions.hear([1], A, 0.0)
    assert sessions.find(0, 1, 1.0) == A
    assert sessions.find(0, 2, 1.0) is None  # the control: nobody speaks of it
    sessions.pin(0, 1, B, 2.0)
    sessions.hear([1], A, 3.0)  # what A says is from before
    assert sessions.find(0, 1, 3.0) == B
    sessions.hear([1], C, 9.0)
    assert sessions.find(0, 1, 9.0) == C
    sessions.hear(range(100, 200), C, 9.5)
    assert sessions.find(0, 1, 9.5) == B  # nodes' words crowd out none of one's own
    assert len(sessions) == 3
    assert [sessions.find(0, number, 9.5) for number in (197, 198, 199)] == [None, C, C]


def test_a_node_that_tells_of_very_many_sessions_ends_none_that_others_tell_of() -> None:
    sessions = SessionMap(max_sessions=1000, idle_s=1e9)
    sessions.hear(range(300), A, 0.0)
    sessions.hear(range(300, 400), B, 0.0)
    for first in range(10_000, 60_000, 500):
        sessions.hear(range(first, first + 500), C, 1.0)
        assert len(sessions) <= 1000
    assert {sessions.find(0, number, 1.0) for number in range(300)} == {A}
    assert {sessions.find(0, number, 1.0) for number in range(300, 400)} == {B}
    assert sessions.find(0, 59_999, 1.0) == C
    assert sessions.find(0, 10_000, 1.0) is None  # its own give way, those told first before others
    for first in range(100_000, 150_000, 500):  # the control: the same word by the node itself
        sessions.hear(range(first, first + 500), A, 2.0)
    assert sessions.find(0, 0, 2.0) is None


@given(
    st.lists(
        st.tuples(st.sampled_from((A, B, C)), st.lists(st.integers(0, 60), max_size=30)),
        max_size=40,
    )
)
def test_the_latest_word_of_nodes_counts_whatever_they_say(
    words: list[tuple[NodeId, list[int]]],
) -> None:
    sessions, latest = SessionMap(max_sessions=25, idle_s=1e9), dict[int, NodeId]()
    for node_id, told in words:
        sessions.hear(told, node_id, 0.0)
        latest |= dict.fromkeys(told, node_id)
        found = {number: sessions.find(0, number, 0.0) for number in range(61)}
        known = {number: place for number, place in found.items() if place is not None}
        assert known.items() <= latest.items()
        assert len(known) == len(sessions) <= 25


def test_a_session_that_is_heard_of_takes_little_memory() -> None:
    sessions, told = SessionMap(100_000, 10.0), list(range(1 << 40, (1 << 40) + 10_000))
    tracemalloc.start()
    for first in range(0, len(told), 100):
        sessions.hear(told[first : first + 100], A, first / 100 + 0.5)
    num_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(sessions) == 10_000
    assert num_bytes < 100 * len(sessions)  # besides the names: a place for each takes 56 more


@pytest.mark.parametrize("num_owners", [1, 3, 200])
def test_an_account_with_many_sessions_ends_no_other_ones(num_owners: int) -> None:
    sessions = SessionMap(max_sessions=500, idle_s=1e9)
    modest = range(1, num_owners)
    for owner in modest:
        sessions.pin(owner, owner, A, 0.0)
    for number in range(5000):
        sessions.pin(0, 1000 + number, B, 1.0 + number)
        assert len(sessions) <= 500
    assert {sessions.find(owner, owner, 6000.0) for owner in modest} <= {A}
    assert sessions.find(0, 1000 + 4999, 6000.0) == B
    assert sessions.find(0, 1000, 6000.0) is None  # its own give way, the oldest ones first
    one_for_all = SessionMap(max_sessions=500, idle_s=1e9)  # the control: nobody's are told apart
    for number in range(num_owners + 5000):
        one_for_all.pin(0, number, A, 0.0)
    assert one_for_all.find(0, 1, 0.0) is None


def test_more_accounts_than_room_leave_the_latest_ones() -> None:
    sessions = SessionMap(max_sessions=100, idle_s=1e9)
    for owner in range(1000):
        sessions.pin(owner, owner, A, float(owner))
    assert len(sessions) <= 100
    assert sessions.find(999, 999, 1000.0) == A
    assert sessions.find(0, 0, 1000.0) is None


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 300)), max_size=600))
def test_sessions_are_counted_whatever_comes(pins: list[tuple[int, int]]) -> None:
    sessions = SessionMap(max_sessions=70, idle_s=1e9)
    for owner, number in pins:
        sessions.pin(owner, 1000 * owner + number, A, 0.0)
        assert sessions.find(owner, 1000 * owner + number, 0.0) == A
        assert len(sessions) <= 70
    found = [sessions.find(o, 1000 * o + n, 0.0) for o in range(6) for n in range(301)]
    assert found.count(A) == len(sessions)


def test_gateways_agree_on_where_a_session_begins_and_a_lost_node_moves_only_its_own() -> None:
    nodes = [NodeId(f"n{i}") for i in range(10)]
    places = {session: choose_first_place(session, nodes) for session in range(1000)}
    assert places == {s: choose_first_place(s, list(reversed(nodes))) for s in range(1000)}
    assert len(set(places.values())) == 10
    for session, place in places.items():
        if place != nodes[0]:
            assert choose_first_place(session, nodes[1:]) == place
    many = [NodeId(f"n{i}") for i in range(1000)]
    assert len({choose_first_place(session * 7919, many) for session in range(1000)}) > 400
