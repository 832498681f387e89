"""Who is left alone for a while, and who is tried again."""

import pytest
from msgspec.structs import replace

from contracts.ids import ModelName, NodeId
from gateway.routing.node_health import NodeHealth
from gateway.routing.route_plan import Rejection, RouteNeed

A, B, C, D = (NodeId(name) for name in "abcd")


def fail(health: NodeHealth, node_id: NodeId, count: int, now_s: float = 0.0) -> None:
    for _ in range(count):
        health.note_failure(node_id, now_s, 0)


def test_failures_in_a_row_open_the_breaker_and_a_success_between_does_not() -> None:
    health = NodeHealth([A, B, C, D])
    fail(health, A, 4)
    health.note_success(A, 0)
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
        health.note_success(A, 0)
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
            health.note_success(node_id, 0)
        health.note_failure(A, 0.0, 0) if turn % 2 else health.note_success(A, 0)
    assert health.list_troubled(0.0) == {A: Rejection.BREAKER_OPEN}


def test_when_most_fail_the_fault_is_not_theirs() -> None:
    health = NodeHealth([A, B, C, D])
    for node_id in (A, B, C, D):
        fail(health, node_id, 5)
    is_open = [r for r in health.list_troubled(0.0).values() if r is Rejection.BREAKER_OPEN]
    assert len(is_open) == 2


def fail_for(health: NodeHealth, node_id: NodeId, *owners: int) -> None:
    for owner in owners:
        health.note_failure(node_id, 0.0, owner)


def list_for(health: NodeHealth, owner: int, now_s: float = 0.0) -> dict[NodeId, Rejection]:
    return health.list_troubled(now_s, RouteNeed(ModelName("m"), None, owner=owner))


@pytest.mark.parametrize("others_succeed", [True, False])
def test_failures_of_one_account_leave_the_node_alone_for_that_account_only(
    others_succeed: bool,
) -> None:
    health = NodeHealth([A, B, C, D])
    for _ in range(100):
        fail_for(health, A, 1)
        if others_succeed:
            health.note_success(A, 2)
    assert list_for(health, 1) == {A: Rejection.BREAKER_OPEN}
    assert list_for(health, 2) == {}
    assert health.list_troubled(0.0) == {A: Rejection.BREAKER_OPEN}  # operators are told
    need = RouteNeed(ModelName("m"), None, owner=2)
    assert (health.find_loner(need), health.find_loner(replace(need, owner=1))) == (0, 1)


def test_a_node_that_fails_several_accounts_is_left_alone_as_soon_as_ever() -> None:
    health = NodeHealth([A, B, C, D])
    fail_for(health, A, 1, 2, 1, 2)
    assert list_for(health, 3) == {}
    fail_for(health, A, 1)
    assert list_for(health, 3) == {A: Rejection.BREAKER_OPEN}


def test_a_single_account_leaves_a_node_alone_after_as_many_failures_as_ever() -> None:
    health = NodeHealth([A, B, C, D])
    fail_for(health, A, *[1] * 4)
    assert list_for(health, 1) == {}
    fail_for(health, A, 1)
    assert list_for(health, 1) == {A: Rejection.BREAKER_OPEN}
    assert list_for(health, 1, 1.1) == {}
    for _ in range(2):
        health.note_sent(A)
    assert list_for(health, 1, 1.1) == {A: Rejection.ON_PROBATION}
    assert list_for(health, 1, 100.0) == {}  # it may be others that it is busy with
    for _ in range(5):
        health.note_success(A, 1)
    assert list_for(health, 1, 1.1) == {}


def test_one_account_keeps_a_node_that_came_back_from_others_only_for_a_moment() -> None:
    health = NodeHealth([A, B])
    health.note_gone(A)
    for second in range(50):
        health.note_failure(A, float(second), 1)
    assert list_for(health, 2, 5.0) == {}
    assert list_for(health, 1, 50.0) == {A: Rejection.BREAKER_OPEN}


@pytest.mark.parametrize(("now_s", "is_wary"), [(30.0, True), (62.0, False)])
def test_what_one_account_holds_against_a_node_is_over_by_itself(
    now_s: float, is_wary: bool
) -> None:
    health = NodeHealth([A, B, C])
    fail_for(health, A, *[1] * 5)
    health.note_success(A, 2)
    for _ in range(3):
        health.note_sent(A)
    need = RouteNeed(ModelName("m"), None, owner=1)
    assert bool(list_for(health, 1, now_s)) is is_wary
    assert bool(health.find_loner(need)) is is_wary
    assert bool(health.list_concerned()) is is_wary


def test_one_account_makes_no_outlier_of_a_node_for_others_and_several_do() -> None:
    for owners in ((1, 1), (1, 2)):
        health = NodeHealth([A, B, C, D])
        for turn in range(60):
            for node_id in (A, B, C, D):
                health.note_success(node_id, 3)
            fail_for(health, A, owners[turn % 2])
        is_outlier = list_for(health, 3) == {A: Rejection.BREAKER_OPEN}
        assert is_outlier == (owners == (1, 2))


def test_what_is_known_of_accounts_is_forgotten_with_their_failures() -> None:
    health = NodeHealth([A, B])
    for owner in range(1, 3000):
        fail_for(health, A, owner)
    assert len(health._by_owner) == 1024
    for _ in range(40):
        health.note_success(A, 2999)
    assert len(health._by_owner) == 1023


def test_the_more_often_a_node_has_relapsed_the_more_answers_must_begin() -> None:
    for num_relapses in range(4):
        health = NodeHealth([A, B])
        health.note_gone(A)
        now_s = 0.0
        for _ in range(num_relapses):
            health.note_failure(A, now_s, 0)
            now_s += 100.0
        for _ in range(2):
            health.note_sent(A)
        for _ in range(num_relapses):
            health.note_begun(A, 0)
            assert health.list_troubled(now_s) == {A: Rejection.ON_PROBATION}
        health.note_begun(A, 0)
        assert health.list_troubled(now_s) == {}


def test_a_node_that_begins_answers_and_fails_them_later_is_held_to_a_few() -> None:
    health = NodeHealth([A, B])
    fail(health, A, 5)
    health.note_begun(A, 0)
    health.note_begun(A, 0)
    fail(health, A, 1, now_s=2.0)
    assert health.list_troubled(2.0) == {A: Rejection.BREAKER_OPEN}
    for _ in range(2):
        health.note_sent(A)
    assert health.list_troubled(10.0) == {A: Rejection.ON_PROBATION}  # what began before is void
