"""Who is left alone for refusing what it says it has room for, by which requests, for how long."""

import pytest
from msgspec.structs import replace

from contracts.adapters import AdapterRef
from contracts.ids import BootId, NodeId
from gateway.routing.refusals import Refusals
from gateway.routing.route_plan import Rejection, RouteNeed
from gateway.sources import create_sources
from tests.gateway.routing.fleet_words import NEED, create_fleet, create_load, create_report

A, B = NodeId("a"), NodeId("b")
PATIENT = replace(NEED, may_wait=True)
ADAPTER = AdapterRef(weights_sha256=b"d" * 32, num_bytes=64, scale=1.0, rank=8)
OTHER_KINDS = {
    "adapter": replace(NEED, adapter=ADAPTER),
    "constraint": replace(NEED, has_constraint=True),
    "large": replace(NEED, num_prompt_bytes=1 << 20),
}


def refuse(refusals: Refusals, count: int, need: RouteNeed = NEED, now_s: float = 0.0) -> None:
    for _ in range(count):
        refusals.note_refused(A, need, now_s)


def list_paused(refusals: Refusals, now_s: float, need: RouteNeed = NEED) -> list[NodeId]:
    return list(refusals.list_paused(need, now_s))


def test_a_few_in_a_row_are_enough_and_one_that_is_taken_between_ends_them() -> None:
    refusals = Refusals()
    refuse(refusals, 4)
    refusals.note_taken(A, NEED)
    refuse(refusals, 4)
    assert list_paused(refusals, 0.0) == []
    refuse(refusals, 1)
    assert list_paused(refusals, 0.0) == [A]
    refusals.note_taken(A, NEED)
    assert list_paused(refusals, 0.0) == []


def test_after_each_pause_one_request_tries_the_node_and_the_next_pause_is_longer() -> None:
    refusals = Refusals()
    refuse(refusals, 5)
    now_s, pauses = 0.0, list[float]()
    for _ in range(8):
        began_s = now_s
        while list_paused(refusals, now_s):
            now_s += 0.5
        pauses.append(now_s - began_s)
        refusals.note_sent(A, NEED, now_s)
        assert list_paused(refusals, now_s) == [A]  # nobody else goes before that has an answer
        refuse(refusals, 1, now_s=now_s)
    assert pauses == [1, 2, 4, 8, 16, 30, 30, 30]


@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_what_is_refused_of_one_kind_leaves_no_node_alone_by_another(kind: str) -> None:
    refusals = Refusals()
    refuse(refusals, 5, OTHER_KINDS[kind])
    assert list_paused(refusals, 0.0) == []
    assert list_paused(refusals, 0.0, OTHER_KINDS[kind]) == [A]
    refusals.note_taken(A, NEED)
    assert list_paused(refusals, 0.0, OTHER_KINDS[kind]) == [A]


@pytest.mark.parametrize("num_accounts", [1, 2, 3])
def test_no_account_has_a_node_left_alone_by_others(num_accounts: int) -> None:
    """Not with as many refusals as it likes; the control: three have."""
    refusals = Refusals()
    for owner in range(1, num_accounts + 1):
        refuse(refusals, 100, replace(NEED, owner=owner))
        assert list_paused(refusals, 0.0, replace(NEED, owner=owner)) == [A]
    assert list_paused(refusals, 0.0) == ([A] if num_accounts == 3 else [])
    refusals.note_sent(A, NEED, 0.0)
    refusals.note_sent(A, replace(NEED, owner=1), 0.0)
    assert list_paused(refusals, 0.0) == ([A] if num_accounts == 3 else [])
    refusals.note_taken(A, NEED)
    assert list_paused(refusals, 0.0, replace(NEED, owner=1)) == []


@pytest.mark.parametrize(
    ("load", "need", "counts"),
    [
        (create_load(), PATIENT, True),
        (create_load(running=1, max_running=2), PATIENT, True),
        (create_load(running=2, max_running=2), PATIENT, False),
        (create_load(waiting=1), PATIENT, False),
        (create_load(is_ready=False), PATIENT, False),
        (create_load(), NEED, False),
    ],
    ids=["idle", "a place is free", "none is", "some wait", "asleep", "would not wait"],
)
def test_only_refusals_of_what_there_seems_to_be_room_for_count(
    load: object, need: RouteNeed, counts: bool
) -> None:
    fleet = create_fleet("a", "b", sources=create_sources())
    for node_id in (A, B):
        fleet.record_report(replace(create_report(node_id), loads=(load,)))
    for _ in range(5):
        fleet.note_refusal(A, need)
    expected = [(A, Rejection.REFUSING)] if counts else []
    assert [one for one in fleet.list_rejections(need) if one[1] is Rejection.REFUSING] == expected


def test_a_refusing_node_is_the_last_resort_and_a_new_life_of_it_begins_anew() -> None:
    fleet = create_fleet("a", "b", sources=create_sources())
    for node_id in (A, B):
        fleet.record_report(create_report(node_id))
    for _ in range(5):
        fleet.note_refusal(A, PATIENT)
    plans = [fleet.plan(NEED) for _ in range(4)]
    assert {plan.node_id for plan in plans} == {B}
    assert not fleet.takes(A, NEED)
    assert fleet.plan(replace(NEED, tried=frozenset({B}))).node_id == A  # nobody else is left
    fleet.record_report(replace(create_report("a"), boot_id=BootId("another")))
    assert fleet.takes(A, NEED)
