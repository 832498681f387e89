"""The ring of decisions: the newest first, never more than it holds."""

from contracts.ids import AccountId, RequestId
from gateway.routing.decisions import MAX_DECISIONS, Decisions
from tests.gateway.routing.fleet_words import MODEL

REQUEST = (RequestId("r"), AccountId("a" * 32))


def test_the_oldest_makes_room_and_the_newest_comes_first() -> None:
    decisions = Decisions()
    refusal = "No node can take it."
    for number in range(MAX_DECISIONS + 7):
        decisions.note(float(number), REQUEST, MODEL, 0, refusal)
    listed = list(decisions.list_newest())
    assert len(listed) == MAX_DECISIONS
    assert (listed[0].unix_s, listed[-1].unix_s) == (MAX_DECISIONS + 6, 7)
    assert (listed[0].plan, listed[0].refusal) == (None, refusal)
