"""The choice of a node: the law first, then the least loaded, and a reason for every refusal."""

from typing import Any

import msgspec
import pytest

from contracts.errors import (
    ModelFailed,
    NoEndpoint,
    PoolSaturated,
    ResidencyViolation,
    ServiceError,
    UnknownModel,
)
from contracts.ids import ModelName, NodeId, RegionId
from gateway.routing.route_plan import (
    NodeSnapshot,
    Rejection,
    RouteNeed,
)
from gateway.routing.search import Search
from tests.gateway.routing.fleet_words import (
    BOUND,
    BOUNDS,
    FULL,
    MODEL,
    NEED,
    NOW_S,
    STALE_S,
    allow,
    choose,
    create_load,
    create_node,
    create_silent_node,
)

ABROAD: dict[str, Any] = {"region": RegionId("enam")}
EMPTY: dict[str, Any] = {"cards": {}, "loads": {}}
DEFECTS: list[tuple[Rejection, dict[str, Any]]] = [
    (Rejection.UNKNOWN, {"region": None}),
    (Rejection.RESIDENCY, ABROAD),
    (Rejection.MODEL_ABSENT, EMPTY),
    (Rejection.UNREACHABLE, {"is_connected": False}),
    (Rejection.DRAINING, {"is_draining": True}),
    (Rejection.REPORT_STALE, {"reported_s": STALE_S}),
    (Rejection.SATURATED, {"loads": {MODEL: FULL}}),
]
OF_SOME_REQUESTS = {
    Rejection.ADAPTER,
    Rejection.OTHER_REVISION,
    Rejection.PROMPTS,
    Rejection.BAD_WORDS,
    Rejection.CONTEXT,
    Rejection.RETENTION,
}
"""What stands against a node for requests that ask more than these tests do."""


def find_reasons(*nodes: NodeSnapshot, need: RouteNeed = BOUND) -> list[Rejection]:
    """Why each of `nodes` was passed over for a good one."""
    plan = choose(*nodes, create_node("good"), need=need)
    assert plan.node_id == "good"
    return [reason for _, reason in plan.rejected]


@pytest.mark.parametrize(("reason", "defect"), DEFECTS, ids=[name for name, _ in DEFECTS])
def test_each_defect_has_its_reason(reason: Rejection, defect: dict[str, Any]) -> None:
    assert find_reasons(create_node("bad", **defect)) == [reason]


@pytest.mark.parametrize("first", range(len(DEFECTS)))
def test_the_filters_come_in_the_order_of_the_reasons(first: int) -> None:
    """A node with every defect from `first` on is told the first of them."""
    worst: dict[str, Any] = {}
    for _, defect in reversed(DEFECTS[first:]):
        worst |= defect
    node = create_node("bad", **worst)
    need = msgspec.structs.replace(BOUND, tried=frozenset({NodeId("bad")}))
    assert find_reasons(node, need=need) == [DEFECTS[first][0]]
    common = [reason for reason in Rejection if reason not in OF_SOME_REQUESTS]
    assert [name for name, _ in DEFECTS] == common[: len(DEFECTS)]


def test_a_node_that_operators_have_drained_counts_as_one_that_drains_by_itself() -> None:
    assert find_reasons(create_node("bad", is_drained=True)) == [Rejection.DRAINING]


def test_a_node_that_has_failed_this_request_is_left_out() -> None:
    need = msgspec.structs.replace(NEED, tried=frozenset({NodeId("bad")}))
    assert find_reasons(create_node("bad"), need=need) == [Rejection.TRIED]


def test_a_report_is_good_until_its_very_end() -> None:
    node = create_node("a", reported_s=NOW_S - BOUNDS.report_ttl_s)
    assert choose(node).node_id == "a"


# -- the law -------------------------------------------------------------------------------------


def test_data_stays_in_its_regions_however_busy_they_are() -> None:
    busy = create_node("home", loads={MODEL: create_load(running=500, waiting=9)})
    idle = create_node("abroad", "enam")
    assert choose(idle, busy, need=BOUND).node_id == "home"
    # The control: without the rule the idle one is chosen.
    assert choose(idle, busy).node_id == "abroad"


@pytest.mark.parametrize("need", [allow("apac"), allow("weur-1"), allow("WEUR"), allow()])
def test_no_lawful_region_is_a_residency_error_and_never_a_fallback(need: RouteNeed) -> None:
    nodes = [create_node("a"), create_node("b", "enam")]
    with pytest.raises(ResidencyViolation):
        choose(*nodes, need=need)
    assert choose(*nodes).node_id == "a"  # the control


def test_none_allows_every_region_and_an_empty_rule_none() -> None:
    assert choose(create_node("a", "anywhere"), need=RouteNeed(MODEL, None)).region == "anywhere"
    with pytest.raises(ResidencyViolation):
        choose(create_node("a", "anywhere"), need=RouteNeed(MODEL, ()))


@pytest.mark.parametrize(("reason", "defect"), DEFECTS[3:], ids=[name for name, _ in DEFECTS[3:]])
def test_a_lawful_node_in_trouble_opens_no_door_abroad(
    reason: Rejection, defect: dict[str, Any]
) -> None:
    home, abroad = create_node("home", **defect), create_node("abroad", "enam")
    with pytest.raises((NoEndpoint, PoolSaturated)):
        choose(home, abroad, need=BOUND)
    assert choose(home, abroad).node_id == "abroad"  # the control


def test_a_model_that_only_lives_abroad_is_a_residency_error() -> None:
    home, abroad = create_node("home", **EMPTY), create_node("abroad", "enam")
    with pytest.raises(ResidencyViolation):
        choose(home, abroad, need=BOUND)


def test_a_node_of_no_known_region_is_never_lawful() -> None:
    """It cannot happen that such a node has models; if it did, it would still get nothing."""
    stranger = create_node("stranger", None)
    for need in (NEED, BOUND, allow("")):
        with pytest.raises(ServiceError):
            choose(stranger, need=need)
    assert find_reasons(stranger, need=NEED) == [Rejection.UNKNOWN]


# -- empty choices -------------------------------------------------------------------------------


def test_a_model_is_unknown_only_once_every_node_has_spoken() -> None:
    made_up = RouteNeed(ModelName("@made/up"), None)
    with pytest.raises(UnknownModel) as caught:
        choose(create_node("a"), need=made_up)
    assert caught.value.param == "model"
    with pytest.raises(NoEndpoint):
        choose(create_node("a"), create_silent_node("b"), need=made_up)


def test_a_model_that_failed_to_load_is_told_apart_from_one_that_nobody_knows() -> None:
    broken = create_node("a", cards={}, loads={}, failed={MODEL: "/secret/path is damaged"})
    with pytest.raises(ModelFailed) as caught:
        choose(broken)
    assert "secret" not in caught.value.message
    assert choose(broken, create_node("b")).node_id == "b"  # one node is enough
    abroad = create_node("c", "enam", cards={}, loads={}, failed={MODEL: "damaged"})
    with pytest.raises(UnknownModel):  # the control: whoever may not use a node hears nothing of it
        choose(abroad, create_node("d", cards={}, loads={}), need=allow("weur"))


def test_a_silent_node_may_be_the_lawful_one_unless_nowhere_is_lawful() -> None:
    abroad, silent = create_node("a", "enam"), create_silent_node("b")
    with pytest.raises(NoEndpoint):
        choose(abroad, silent, need=BOUND)
    for need, nodes in ((allow(), [abroad, silent]), (BOUND, [abroad])):
        with pytest.raises(ResidencyViolation):
            choose(*nodes, need=need)


def test_a_model_stays_known_while_its_node_is_away() -> None:
    with pytest.raises(NoEndpoint):
        choose(create_node("a", is_connected=False))


@pytest.mark.parametrize(
    "defect", [{"loads": {MODEL: FULL}}, {"reported_s": STALE_S}], ids=["full", "stale"]
)
def test_full_and_silent_nodes_are_lack_of_capacity(defect: dict[str, Any]) -> None:
    with pytest.raises(PoolSaturated):
        choose(create_node("a", **defect), create_node("b", is_draining=True))


def test_a_fleet_without_nodes_serves_nobody_and_breaks_nothing() -> None:
    with pytest.raises(ServiceError):
        choose()


def test_a_card_without_a_load_is_a_model_that_is_not_there() -> None:
    with pytest.raises(NoEndpoint):
        choose(create_node("a", loads={}))
    assert find_reasons(create_node("a", cards={})) == [Rejection.MODEL_ABSENT]


@pytest.mark.parametrize(
    ("need", "error"),
    [
        (RouteNeed(ModelName("@cf/made-up"), None), UnknownModel),
        (allow("made-up"), ResidencyViolation),
        (NEED, None),  # the control
    ],
)
def test_what_clients_make_up_costs_no_look_at_each_node_of_a_large_fleet(
    need: RouteNeed, error: type[ServiceError] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[NodeId] = []
    look_at = Search.look_at

    def note(search: Search, node_id: NodeId, latency_s: float) -> None:
        looked_at.append(node_id)
        look_at(search, node_id, latency_s)

    monkeypatch.setattr(Search, "look_at", note)
    nodes = [create_node(f"n{number}", loads={MODEL: FULL}) for number in range(50)]
    with pytest.raises(error or PoolSaturated):
        choose(*nodes, need=need)
    assert len(set(looked_at)) == (0 if error else 50)
    with pytest.raises(NoEndpoint if error else PoolSaturated):  # it may be there
        choose(*nodes, create_silent_node("new"), need=need)
