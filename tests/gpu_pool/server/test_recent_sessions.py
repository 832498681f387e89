"""What a node tells of sessions: the latest, for a while, and not without end."""

from contracts.fleet import MAX_SESSIONS
from gpu_pool.server.recent_sessions import TOLD_S, RecentSessions


class Clock:
    """A time that is set by hand."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_sessions_are_told_for_a_while_after_their_latest_request() -> None:
    clock = Clock()
    sessions = RecentSessions(clock)
    sessions.note(0)  # of no session
    sessions.note(1)
    clock.now_s = 1.0
    sessions.note(2)
    sessions.note(1)
    assert sessions.list_recent() == (2, 1)
    clock.now_s = 1.0 + TOLD_S
    assert sessions.list_recent() == (2, 1)
    clock.now_s += 0.001
    assert sessions.list_recent() == ()


def test_no_more_sessions_are_told_than_a_report_may_name() -> None:
    sessions = RecentSessions(Clock())
    for session in range(1, MAX_SESSIONS + 11):
        sessions.note(session)
    assert sessions.list_recent() == tuple(range(11, MAX_SESSIONS + 11))
