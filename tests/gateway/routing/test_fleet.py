"""What the gateway remembers of its nodes, and what it has sent them since they last spoke."""

from dataclasses import dataclass

import msgspec
import pytest
from structlog.testing import capture_logs

from contracts.errors import (
    NoEndpoint,
    PoolSaturated,
    ResidencyViolation,
    ServiceError,
    UnknownModel,
)
from contracts.ids import ModelName, NodeId, RegionId
from contracts.region_rules import RegionRules
from gateway.routing.fleet import Fleet
from gateway.routing.region_policy import find_allowed, find_jurisdictions
from gateway.routing.regions import Region
from gateway.routing.route_plan import RouteNeed
from gateway.routing.snapshots import Vouched
from gateway.sources import Sources
from tests.gateway.routing.fleet_words import (
    BOUND,
    BOUNDS,
    MODEL,
    NEED,
    OTHER_MODEL,
    allow,
    create_card,
    create_fleet,
    create_load,
    create_report,
)


@dataclass
class Stopwatch:
    """A monotonic clock that stands still until it is told."""

    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Stopwatch:
    """The fleet's clock."""
    return Stopwatch()


@pytest.fixture
def fleet(clock: Stopwatch) -> Fleet:
    """Two nodes that have not spoken yet."""
    sources = Sources(monotonic_s=clock, unix_s=lambda: 0.0, random_bits=lambda _: 0)
    return create_fleet("a", "b", sources=sources)


def test_nothing_is_known_before_the_first_report(fleet: Fleet) -> None:
    assert [node.node_id for node in fleet.roster.snapshots] == ["a", "b"]
    assert not fleet.has_ready_model()
    assert fleet.roster.list_models() == []
    with pytest.raises(NoEndpoint):
        fleet.plan(NEED)


def test_a_report_makes_a_node_usable_and_silence_ends_that(fleet: Fleet, clock: Stopwatch) -> None:
    fleet.record_report(create_report("a"))
    assert fleet.has_ready_model()
    assert fleet.plan(NEED).node_id == "a"
    clock.now_s = BOUNDS.report_ttl_s + 0.001
    assert not fleet.has_ready_model()
    with pytest.raises(PoolSaturated):
        fleet.plan(NEED)
    fleet.record_report(create_report("a"))
    assert fleet.plan(NEED).node_id == "a"


def test_where_prompts_are_matters_for_models_that_several_nodes_have(fleet: Fleet) -> None:
    assert not fleet.has_choice(MODEL)
    fleet.record_report(create_report("a"))
    assert not fleet.has_choice(MODEL)
    both = (create_card(), create_card(OTHER_MODEL))
    fleet.record_report(msgspec.structs.replace(create_report("b"), models=both))
    assert fleet.has_choice(MODEL)
    assert not fleet.has_choice(OTHER_MODEL)
    fleet.dismiss(NodeId("a"))
    assert not fleet.has_choice(MODEL)


def test_the_only_node_of_a_model_has_to_pass_every_filter(fleet: Fleet) -> None:
    fleet.record_report(create_report("a"))
    fleet.record_report(msgspec.structs.replace(create_report("b"), models=(), loads=()))
    assert fleet.plan(NEED).node_id == "a"
    with pytest.raises(ResidencyViolation):
        fleet.plan(RouteNeed(MODEL, (RegionId("apac"),)))
    fleet.record_link_lost(NodeId("a"))
    with pytest.raises(NoEndpoint):
        fleet.plan(NEED)


def test_requests_spread_between_two_reports(fleet: Fleet) -> None:
    for node_id in ("a", "b"):
        fleet.record_report(create_report(node_id))
    assert [fleet.plan(NEED).node_id for _ in range(4)] == ["a", "b", "a", "b"]


def test_a_request_that_is_over_counts_no_more(fleet: Fleet) -> None:
    for node_id in ("a", "b"):
        fleet.record_report(create_report(node_id))
    for _ in range(3):
        plan = fleet.plan(NEED)
        assert plan.node_id == "a"
        fleet.release(plan)


def test_a_report_takes_over_what_was_sent_before_it(fleet: Fleet) -> None:
    fleet.record_report(create_report("a"))
    fleet.record_report(create_report("b", running=1))
    before = fleet.plan(NEED)
    fleet.record_report(create_report("a"))
    first = fleet.plan(NEED).first_token_s  # the report has counted the first request itself
    assert first == before.first_token_s
    fleet.release(before)  # ... and its end is not subtracted from what was sent since
    assert fleet.plan(NEED).first_token_s > first


def record_even_reports(fleet: Fleet, num_running: int) -> None:
    """Two nodes whose prompts take no time have as many requests of the same size."""
    num_free = 1000 - 250 * num_running
    load = create_load(running=num_running, num_blocks=1000, num_free_blocks=num_free)
    quick = msgspec.structs.replace(load, prefill_tokens_per_s=1e9)
    for node_id in ("a", "b"):
        fleet.record_report(msgspec.structs.replace(create_report(node_id), loads=(quick,)))


LARGE = msgspec.structs.replace(NEED, num_prompt_tokens=4000, num_prompt_bytes=16_000)


def test_what_was_sent_is_held_before_the_node_says_so(fleet: Fleet) -> None:
    record_even_reports(fleet, 0)
    fleet.plan(LARGE, NodeId("a"))
    for _ in range(2):
        fleet.plan(NEED, NodeId("b"))
    assert fleet.plan(NEED).node_id == "b"
    record_even_reports(fleet, 1)
    assert fleet.plan(NEED).node_id == "a"  # the control: now the nodes have said what they hold


def test_the_end_of_what_a_report_had_not_counted_yet_makes_a_node_no_emptier_than_empty(
    fleet: Fleet,
) -> None:
    for node_id in ("a", "b"):
        fleet.record_report(create_report(node_id))
    elsewhere = fleet.plan(LARGE, NodeId("b"))
    fleet.record_report(create_report("b"))  # it had left before the request came
    fleet.release(elsewhere)
    assert fleet.plan(NEED).node_id == "a"


def test_what_is_over_is_held_no_more_before_the_node_says_so(fleet: Fleet) -> None:
    record_even_reports(fleet, 0)
    over = fleet.plan(LARGE, NodeId("b"))
    record_even_reports(fleet, 1)
    control = fleet.plan(NEED)
    assert control.node_id == "a"
    fleet.release(control)
    fleet.release(over)
    assert fleet.plan(NEED).node_id == "b"


def test_a_node_fills_up_between_reports(fleet: Fleet) -> None:
    fleet.record_report(create_report("a"))
    fleet.record_report(msgspec.structs.replace(create_report("b"), is_draining=True))
    for _ in range(BOUNDS.max_waiting_per_model):
        fleet.plan(NEED)
    with pytest.raises(PoolSaturated):
        fleet.plan(NEED)


def test_a_lost_link_takes_the_node_out_and_keeps_its_models_known(fleet: Fleet) -> None:
    for node_id in ("a", "b"):
        fleet.record_report(create_report(node_id))
    fleet.record_link_lost(NodeId("a"))
    assert [fleet.plan(NEED).node_id for _ in range(2)] == ["b", "b"]
    fleet.record_link_lost(NodeId("b"))
    assert not fleet.has_ready_model()
    assert [card.name for card in fleet.roster.list_models()] == [MODEL]
    with pytest.raises(NoEndpoint):
        fleet.plan(NEED)
    fleet.record_report(create_report("a"))
    assert fleet.plan(NEED).node_id == "a"


def test_releasing_after_the_link_was_lost_is_harmless(fleet: Fleet) -> None:
    fleet.record_report(create_report("a"))
    plan = fleet.plan(NEED)
    fleet.record_link_lost(NodeId("a"))
    fleet.release(plan)
    fleet.record_report(create_report("a"))
    assert fleet.plan(NEED).first_token_s == plan.first_token_s


@pytest.mark.parametrize("region", ["", "we ur", "weur\r\nx-evil: 1", "é", "a" * 64])
def test_a_region_that_could_forge_a_header_is_refused_with_its_report(
    fleet: Fleet, region: str
) -> None:
    fleet.record_report(create_report("a", region))
    assert fleet.roster.snapshots[0].region is None
    assert not fleet.has_ready_model()
    fleet.record_report(create_report("a"))
    fleet.record_report(create_report("a", region))
    assert fleet.roster.snapshots[0].region == RegionId("weur")  # what was known before stands


def test_a_node_that_is_not_ready_or_draining_makes_no_gateway_ready(fleet: Fleet) -> None:
    report = create_report("a")
    cold = msgspec.structs.replace(report, loads=(create_load(is_ready=False),))
    fleet.record_report(cold)
    assert not fleet.has_ready_model()
    fleet.record_report(msgspec.structs.replace(report, is_draining=True))
    assert not fleet.has_ready_model()
    fleet.record_report(report)
    assert fleet.has_ready_model()


def test_a_model_that_a_node_gives_up_is_known_no_more(fleet: Fleet) -> None:
    for node_id in ("a", "b"):
        fleet.record_report(create_report(node_id))
    other = msgspec.structs.replace(
        create_report("a"), models=(create_card(OTHER_MODEL),), loads=(create_load(OTHER_MODEL),)
    )
    fleet.record_report(other)
    assert [card.name for card in fleet.roster.list_models()] == [OTHER_MODEL, MODEL]
    assert fleet.plan(RouteNeed(OTHER_MODEL, None)).node_id == "a"
    assert fleet.plan(NEED).node_id == "b"
    with pytest.raises(UnknownModel):
        fleet.plan(RouteNeed(ModelName("@made/up"), None))


def test_the_longest_context_follows_what_nodes_offer(fleet: Fleet) -> None:
    """Every request asks for it, so it is remembered; a card that changes must show at once."""

    def offer(node_id: str, window: int) -> None:
        card = msgspec.structs.replace(create_card(), context_window=window)
        fleet.record_report(msgspec.structs.replace(create_report(node_id), models=(card,)))

    offer("a", 100)
    offer("b", 300)
    assert fleet.roster.find_context_window(MODEL) == 300
    offer("b", 50)
    assert fleet.roster.find_context_window(MODEL) == 100
    found = fleet.roster.find_model(MODEL)
    assert found is not None
    assert found.context_window == 50
    fleet.dismiss(NodeId("a"))
    assert fleet.roster.find_context_window(MODEL) == 50
    fleet.dismiss(NodeId("b"))
    assert fleet.roster.find_model(MODEL) is None
    assert isinstance(fleet.explain_unoffered(NEED), UnknownModel)


def test_a_region_whose_nodes_contradict_each_other_lies_in_no_jurisdiction(fleet: Fleet) -> None:
    fleet.record_report(create_report("a"))
    assert fleet.roster.laws.list_regions(["eu"]) == {"weur"}
    fleet.record_report(msgspec.structs.replace(create_report("b"), jurisdiction="us"))
    assert fleet.roster.laws.list_regions(["eu"]) == set()
    assert fleet.roster.laws.list_regions(["us"]) == set()
    assert fleet.roster.laws.list_regions(["eu", "us"]) == {"weur"}
    fleet.record_report(create_report("b"))
    assert fleet.roster.laws.list_regions(["eu"]) == {"weur"}


def test_a_node_is_where_the_configuration_has_it_whatever_it_says(clock: Stopwatch) -> None:
    sources = Sources(monotonic_s=clock, unix_s=lambda: 0.0, random_bits=lambda _: 0)
    fleet = create_fleet("a", "b", sources=sources, vouched={"a": "weur"})
    need = RouteNeed(MODEL, frozenset({RegionId("enam")}))
    fleet.record_report(create_report("a", "enam"))
    with pytest.raises(NoEndpoint):
        fleet.plan(need)
    fleet.record_report(create_report("b", "enam"))  # the control: nobody vouches for this one
    assert fleet.plan(need).node_id == "b"
    fleet.record_report(create_report("a"))
    assert fleet.plan(RouteNeed(MODEL, frozenset({RegionId("weur")}))).node_id == "a"


def test_a_node_under_another_law_than_the_catalogues_is_refused_by_that_name(
    clock: Stopwatch,
) -> None:
    sources = Sources(monotonic_s=clock, unix_s=lambda: 0.0, random_bits=lambda _: 0)
    fleet = create_fleet("a", sources=sources, regions={"weur": Region("eu", 0.0)})
    refused = msgspec.structs.replace(create_report("a"), jurisdiction="us")
    with capture_logs() as lines:
        for _ in range(3):
            fleet.record_report(refused)
    (line,) = (one for one in lines if one["log_level"] == "error")  # said once
    assert line["event"] == "report_of_another_jurisdiction"
    assert (line["node_id"], line["said"], line["configured"]) == ("a", "us", "eu")
    assert not fleet.has_ready_model()
    fleet.record_report(create_report("a"))  # the control
    assert fleet.has_ready_model()
    with capture_logs() as lines:
        fleet.record_report(refused)
    assert [line["event"] for line in lines] == ["report_of_another_jurisdiction"]


def expect(fleet: Fleet, **regions: str) -> None:
    """Operators count on these nodes."""
    fleet.expect({NodeId(name): Vouched(RegionId(region)) for name, region in regions.items()})


def refuse(fleet: Fleet, need: RouteNeed = NEED) -> type[ServiceError]:
    """What a request is told that finds no node."""
    with pytest.raises(ServiceError) as refused:
        fleet.plan(need)
    return type(refused.value)


def test_what_nodes_serve_that_are_away_is_neither_unknown_nor_against_the_law(
    fleet: Fleet,
) -> None:
    fleet.record_report(create_report("a"))
    fleet.record_report(create_report("b", "enam"))
    fleet.dismiss(NodeId("a"))
    assert refuse(fleet, BOUND) is ResidencyViolation  # the control: nobody counts on it
    expect(fleet, a="weur")
    assert refuse(fleet, BOUND) is NoEndpoint
    assert fleet.plan(NEED).node_id == "b"
    for regions in ((), ("apac",)):
        assert refuse(fleet, allow(*regions)) is ResidencyViolation
    expect(fleet, a="enam")
    assert refuse(fleet, BOUND) is ResidencyViolation
    fleet.dismiss(NodeId("b"))
    assert fleet.roster.find_model(MODEL) is None
    expect(fleet, b="enam")
    assert fleet.roster.find_model(MODEL) is not None
    assert refuse(fleet) is NoEndpoint
    expect(fleet)
    assert fleet.roster.find_model(MODEL) is None
    assert refuse(fleet) is UnknownModel
    fleet.admit(NodeId("a"), Vouched(RegionId("weur")))
    fleet.record_report(create_report("a"))
    assert fleet.plan(BOUND).node_id == "a"


def test_a_node_that_was_never_there_may_have_what_the_law_allows_nowhere_else(
    clock: Stopwatch,
) -> None:
    sources = Sources(monotonic_s=clock, unix_s=lambda: 0.0, random_bits=lambda _: 0)
    fleet = create_fleet("b", sources=sources)
    fleet.record_report(create_report("b", "enam"))
    assert refuse(fleet, BOUND) is ResidencyViolation
    expect(fleet, new="weur")
    assert refuse(fleet, BOUND) is NoEndpoint
    assert refuse(fleet, allow("apac")) is ResidencyViolation
    assert refuse(fleet, RouteNeed(OTHER_MODEL, None)) is UnknownModel
    nobody = create_fleet(sources=sources)
    assert refuse(nobody) is UnknownModel
    expect(nobody, new="weur")  # as a gateway knows it that begins while the store is away
    assert refuse(nobody) is refuse(nobody, BOUND) is NoEndpoint


@pytest.mark.parametrize("allowed", [None, (RegionId("weur"),)])
def test_a_law_that_no_node_has_told_of_yet_is_waited_for(
    fleet: Fleet, allowed: tuple[RegionId, ...] | None
) -> None:
    rules = RegionRules(allowed_regions=allowed, allowed_jurisdictions=("eu",))

    def ask(rules: RegionRules = rules) -> type[ServiceError]:
        jurisdictions = find_jurisdictions(rules, None)
        need = RouteNeed(MODEL, find_allowed(rules, fleet.roster.laws), jurisdictions=jurisdictions)
        error = refuse(fleet, need)
        if fleet.roster.find_model(MODEL) is None:
            assert isinstance(fleet.explain_unoffered(need), error)
        return error

    assert ask() is NoEndpoint
    assert ask(RegionRules(allowed_jurisdictions=())) is ResidencyViolation
    fleet.record_report(msgspec.structs.replace(create_report("a", "enam"), jurisdiction="us"))
    assert ask() is NoEndpoint
    fleet.record_report(msgspec.structs.replace(create_report("b"), jurisdiction="us"))
    assert ask() is ResidencyViolation


def test_of_a_node_that_is_not_to_come_back_nothing_is_kept_once_its_requests_are_over(
    fleet: Fleet,
) -> None:
    """Names of nodes need not come twice, where pools grow and shrink by themselves."""
    node = NodeId("a")
    fleet.record_report(create_report("a"))
    plan = fleet.plan(NEED)
    assert plan.node_id == "a"
    fleet.dismiss(node)
    expect(fleet, a="weur")  # the control: it is away, and counted on
    assert node in fleet.roster.former
    expect(fleet)
    assert node in fleet.roster.former  # what it has is still to be counted
    fleet.release(plan)
    expect(fleet, a="weur")
    assert node in fleet.roster.former
    expect(fleet)
    assert node not in fleet.roster.former
    fleet.admit(node, Vouched(RegionId("weur")))
    fleet.record_report(create_report("a"))
    assert fleet.plan(NEED).node_id == "a"
    assert fleet.health.count_under_way(node) == 1
