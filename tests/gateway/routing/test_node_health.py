"""Who is left alone for a while, who is tried again, and how often anything is tried."""

from contracts.ids import NodeId
from gateway.routing.node_health import NodeHealth
from gateway.routing.retry_budget import RetryBudget
from gateway.routing.route_plan import Rejection

A, B, C, D = (NodeId(name) for name in "abcd")


def fail(health: NodeHealth, node_id: NodeId, count: int, now_s: float = 0.0) -> None:
    for _ in range(count):
        health.note_failure(node_id, now_s)


def test_failures_in_a_row_open_the_breaker_and_a_success_between_does_not() -> None:
    health = NodeHealth([A, B, C, D])
    fail(health, A, 4)
    health.note_success(A)
    fail(health, A, 4)
    assert health.list_troubled(0.0) == {}
    fail(health, A, 1)
    assert health.list_troubled(0.0) == {A: Rejection.BREAKER_OPEN}


def test_after_the_pause_a_node_proves_itself_with_a_few_requests() -> None:
    health = NodeHealth([A, B])
    fail(health, A, 5)
    assert health.list_troubled(2.0) == {}
    for _ in range(2):
        health.note_sent(A)
    assert health.list_troubled(2.0) == {A: Rejection.ON_PROBATION}
    for _ in range(5):
        health.note_success(A)
    assert health.list_troubled(2.0) == {}


def test_each_relapse_doubles_the_pause() -> None:
    health = NodeHealth([A, B])
    fail(health, A, 5)
    assert A not in health.list_troubled(1.1)
    fail(health, A, 1, now_s=1.1)
    assert health.list_troubled(2.9) == {A: Rejection.BREAKER_OPEN}
    assert A not in health.list_troubled(3.2)


def test_a_node_that_went_away_comes_back_on_probation() -> None:
    health = NodeHealth([A, B])
    health.note_gone(A)
    assert health.list_troubled(0.0) == {}
    for _ in range(2):
        health.note_sent(A)
    assert health.list_troubled(0.0) == {A: Rejection.ON_PROBATION}
    health.note_over(A)
    assert health.list_troubled(0.0) == {}


def test_an_outlier_is_found_among_successes() -> None:
    health = NodeHealth([A, B, C, D])
    for turn in range(40):
        for node_id in (B, C, D):
            health.note_success(node_id)
        health.note_failure(A, 0.0) if turn % 2 else health.note_success(A)
    assert health.list_troubled(0.0) == {A: Rejection.BREAKER_OPEN}


def test_when_most_fail_the_fault_is_not_theirs() -> None:
    health = NodeHealth([A, B, C, D])
    for node_id in (A, B, C, D):
        fail(health, node_id, 5)
    is_open = [r for r in health.list_troubled(0.0).values() if r is Rejection.BREAKER_OPEN]
    assert len(is_open) == 2


def test_retries_are_a_share_of_requests_once_the_reserve_is_spent() -> None:
    budget = RetryBudget(reserve=10, per_s=0.0, now_s=0.0)
    assert [budget.spend(0.0) for _ in range(12)].count(True) == 10
    for _ in range(100):
        budget.earn()
    assert [budget.spend(0.0) for _ in range(30)].count(True) == 10  # no more than the reserve
    trickle = RetryBudget(reserve=2, per_s=1.0, now_s=0.0)
    assert [trickle.spend(0.0) for _ in range(3)] == [True, True, False]
    assert trickle.spend(1.0)


def test_requests_that_are_refused_leave_half_of_the_retries_to_those_that_are_lost() -> None:
    budget = RetryBudget(reserve=10, per_s=0.0, now_s=0.0)
    assert sum(budget.spend(0.0, is_refused=True) for _ in range(20)) == 5
    assert sum(budget.spend(0.0) for _ in range(20)) == 5
