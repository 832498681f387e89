"""How many requests more a node gets: its free places and a short line, whatever came between."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.room import count_room
from gateway.routing.route_plan import RouteBounds, Sent
from tests.gateway.routing.fleet_words import create_load

BOUNDS = RouteBounds(report_ttl_s=5.0, max_waiting_per_model=2)


@pytest.mark.parametrize(
    ("running", "waiting", "sent", "room"),
    [
        (0, 0, Sent(), 6),
        (3, 0, Sent(), 3),
        (4, 0, Sent(), 2),
        (4, 2, Sent(), 0),
        (2, 1, Sent(), 1),  # some wait beside free places: it is memory that it lacks
        (0, 0, Sent(6), 0),
        (4, 2, Sent(0, 0, 3), 3),  # three have ended since: two begin, and a place is free
        (4, 2, Sent(2, 0, 3), 1),
        (0, 0, Sent(6, 0, 1), 0),  # the report had not counted the one that is over
    ],
)
def test_room_is_what_is_free_and_may_wait_less_what_is_coming(
    running: int, waiting: int, sent: Sent, room: int
) -> None:
    load = create_load(running=running, waiting=waiting, max_running=4)
    assert count_room(load, sent, BOUNDS) == room


@pytest.mark.parametrize(("coming", "room"), [(1, 4), (3, 2), (9, 2)])
def test_requests_whose_blocks_come_have_a_place_and_are_no_sign_of_full_memory(
    coming: int, room: int
) -> None:
    load = create_load(running=1, num_coming=coming, max_running=4)
    assert count_room(load, Sent(), BOUNDS) == room


def test_prompts_that_fill_the_memory_leave_room_to_wait_only() -> None:
    load = create_load(max_running=100, num_free_blocks=10, block_size=16)
    assert count_room(load, Sent(1, 159), BOUNDS) == 101
    assert count_room(load, Sent(1, 160), BOUNDS) == 1


def test_a_node_that_does_not_say_what_it_runs_gets_what_may_wait() -> None:
    assert count_room(create_load(running=50), Sent(), BOUNDS) == 2


@given(
    running=st.integers(0, 8),
    waiting=st.integers(0, 8),
    ended=st.integers(0, 16),
    depth=st.integers(1, 8),
)
def test_whatever_has_ended_a_node_never_holds_more_than_its_places_and_its_line(
    running: int, waiting: int, ended: int, depth: int
) -> None:
    ended = min(ended, running + waiting)
    load = create_load(running=running, waiting=waiting, max_running=8)
    room = count_room(load, Sent(0, 0, ended), RouteBounds(5.0, depth))
    assert running + waiting - ended + max(room, 0) <= max(8 + depth, running + waiting - ended)
