"""What a node tells of sessions: the latest, for a while, not without end, and of every account."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from contracts.fleet import MAX_SESSIONS
from contracts.ids import AccountId
from gpu_pool.server import recent_sessions
from gpu_pool.server.recent_sessions import TOLD_S, RecentSessions

A, B = AccountId("a"), AccountId("b")


class Clock:
    """A time that is set by hand."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_sessions_are_told_for_a_while_after_their_latest_request() -> None:
    clock = Clock()
    sessions = RecentSessions(clock)
    sessions.note(A, 0)  # of no session
    sessions.note(A, 1)
    clock.now_s = 1.0
    sessions.note(B, 2)
    sessions.note(A, 1)
    assert sessions.list_recent() == (2, 1)
    clock.now_s = 1.0 + TOLD_S
    assert sessions.list_recent() == (2, 1)
    clock.now_s += 0.001
    assert sessions.list_recent() == ()


def test_no_more_sessions_are_told_than_a_report_may_name() -> None:
    sessions = RecentSessions(Clock())
    for session in range(1, MAX_SESSIONS + 11):
        sessions.note(A, session)
    assert sessions.list_recent() == tuple(range(11, MAX_SESSIONS + 11))


def test_many_sessions_of_one_account_leave_anothers() -> None:
    """The control: the same sessions, all of one account."""
    for other, is_told in ((B, True), (A, False)):
        sessions = RecentSessions(Clock())
        for session in range(1, 6):
            sessions.note(other, session)
        for session in range(1000, 1000 + 10 * MAX_SESSIONS):
            sessions.note(A, session)
        told = sessions.list_recent()
        assert len(told) == MAX_SESSIONS
        assert ({1, 2, 3, 4, 5} <= set(told)) is is_told
        assert told[-1] == 999 + 10 * MAX_SESSIONS


def test_two_accounts_that_both_crowd_have_half_each_whoever_came_first() -> None:
    sessions = RecentSessions(Clock())
    for session in range(1, 2 * MAX_SESSIONS):
        sessions.note(A, session)
    for session in range(10_000, 10_000 + 2 * MAX_SESSIONS):
        sessions.note(B, session)
    of_a = [session for session in sessions.list_recent() if session < 10_000]
    assert of_a == list(range(2 * MAX_SESSIONS - MAX_SESSIONS // 2, 2 * MAX_SESSIONS))


_MAX = 12
_Notes = st.lists(
    st.tuples(st.integers(0, 4), st.integers(1, 20), st.sampled_from([0, 0, 0, 1, 10])),
    min_size=15,
    max_size=150,
)
"""Whose, which session, and tenths of a second that pass before."""


@given(notes=_Notes)
def test_every_account_keeps_its_latest_part_whatever_others_ask(
    notes: list[tuple[int, int, int]],
) -> None:
    """Beside a plain list of all that was noted and is not too old."""
    clock = Clock()
    sessions, before = RecentSessions(clock), recent_sessions.MAX_SESSIONS
    recent_sessions.MAX_SESSIONS = _MAX  # type: ignore[misc]
    try:
        noted: dict[int, tuple[int, float]] = {}
        for owner, number, tenths in notes:
            clock.now_s += tenths / 10
            session = 100 * owner + number
            noted.pop(session, None)
            noted[session] = owner, clock.now_s
            sessions.note(AccountId(str(owner)), session)
            told = sessions.list_recent()
            noted = {s: n for s, n in noted.items() if n[1] >= clock.now_s - TOLD_S}
            assert list(told) == [s for s in noted if s in told], "in order, and none too old"
            by_owner = Counter(o for o, _ in noted.values())
            for who, count in by_owner.items():
                own = [s for s, (o, _) in noted.items() if o == who]
                part = min(count, _MAX // len(by_owner))
                assert own[count - part :] == [s for s in told if s in own][-part:]
            assert len(told) <= _MAX
            noted = {s: n for s, n in noted.items() if s in told}
            assert len(told) == min(len(noted), _MAX)
    finally:
        recent_sessions.MAX_SESSIONS = before  # type: ignore[misc]
