"""An account's own probation of a node lasts a while, also where the breaker may not open."""

import pytest
from msgspec.structs import replace

from contracts.ids import NodeId
from gateway.routing.node_health import NodeHealth
from gateway.routing.route_plan import Rejection
from tests.gateway.routing.fleet_words import NEED, NOW_S

A, B = NodeId("a"), NodeId("b")


@pytest.mark.parametrize("owners", [(7, 7), (7, 8)], ids=["one account", "two accounts"])
def test_a_node_that_fails_all_gets_few_at_a_time_where_half_of_all_are_left_alone_already(
    owners: tuple[int, int],
) -> None:
    """Of two nodes one is left alone: the other one is tried with two requests at a time. The
    control: that fail two accounts, so that all are wary of them.
    """
    health, need = NodeHealth([A, B]), replace(NEED, owner=7)
    for node_id in (A, B):
        for _ in range(6):
            for owner in owners:
                health.note_failure(node_id, NOW_S, owner)
    for _ in range(3):
        health.note_sent(B)
    troubled = health.list_troubled(NOW_S + 0.1, need)
    assert troubled == {A: Rejection.BREAKER_OPEN, B: Rejection.ON_PROBATION}
