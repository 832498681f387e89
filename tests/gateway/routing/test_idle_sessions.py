"""Sessions that are over by their idle time take no room from those that go on."""

from contracts.ids import NodeId
from gateway.routing.sessions import SessionMap

A, B = NodeId("a"), NodeId("b")
IDLE_S = 600.0
LATER_S = 1e6


def test_sessions_that_accounts_have_left_long_ago_end_nobody_elses() -> None:
    sessions = SessionMap(max_sessions=640, idle_s=IDLE_S)
    for owner in range(1, 321):
        for number in range(2):
            sessions.pin(owner, 10 * owner + number, A, 0.0)
    mine = range(100_000, 100_100)
    for number in mine:
        sessions.pin(0, number, B, LATER_S)
    assert sessions.find(1, 10, LATER_S) is None  # the control: all of the others are over
    assert {sessions.find(0, number, LATER_S) for number in mine} == {B}


def test_sessions_that_nodes_have_told_of_long_ago_end_none_that_go_on() -> None:
    """Nodes that have left among them: nobody tells of theirs any more."""
    sessions = SessionMap(max_sessions=640, idle_s=IDLE_S)
    for place in range(10):
        sessions.hear(range(100 * place, 100 * place + 64), NodeId(f"former-{place}"), 0.0)
    told = range(100_000, 100_300)
    sessions.hear(told, B, LATER_S)
    assert sessions.find(0, 0, LATER_S) is None  # the control
    assert {sessions.find(0, number, LATER_S) for number in told} == {B}
