"""The planner: who goes where, and what holds for every fleet and every demand."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.fleet_view import PlacementRule
from contracts.placement import PlacementPlan, ServiceClass, Tier
from hot_standby.demand import Demand
from hot_standby.fleet_state import FleetState, NodeState
from hot_standby.placement_planner import plan_placement
from hot_standby.settings import PlannerSettings
from tests.hot_standby.fleet_words import (
    GIB,
    NOW_S,
    WEUR,
    WNAM,
    change_model,
    create_node,
    expect,
    name_model,
    plan,
    plan_all,
    rule,
)

GPU, HOST, DISK = Tier.GPU, Tier.HOST, Tier.DISK
QUIET = PlannerSettings(prewarm_at=1.0, prewarm_host_at=1.0)


def test_what_is_wanted_soonest_has_the_device() -> None:
    node = create_node(device=2, a=GPU, b=GPU, c=HOST)
    demands = expect("a", 0.05), expect("b", 0.5), expect("c", 0.9)
    assert plan([node], *demands)["n1"] == {"a": HOST, "b": GPU, "c": GPU}


def test_nobody_comes_to_the_device_for_a_request_that_is_hardly_to_be_expected() -> None:
    node = create_node(device=2, a=HOST, b=HOST)
    assert plan([node], expect("a", 0.49), expect("b", 0.51))["n1"] == {"a": HOST, "b": GPU}


def test_a_little_more_demand_does_not_take_another_model_s_place() -> None:
    node = create_node(device=1, a=GPU, b=HOST)
    near, far = expect("a", 0.8), expect("b", 0.9)
    assert plan([node], near, far)["n1"] == {"a": GPU, "b": HOST}
    moved = plan([node], near, far, settings=PlannerSettings(hysteresis=0.0))
    assert moved["n1"] == {"a": HOST, "b": GPU}  # the control


def test_a_model_with_requests_stays_whatever_else_is_wanted() -> None:
    node = change_model(create_node(device=1, a=GPU, b=HOST), "a", num_in_flight=1)
    assert plan([node], expect("b", 1.0))["n1"]["a"] is GPU
    assert plan_all([node], expect("b", 1.0))["n1"].eviction_order[-1] == name_model("a")


def test_whoever_is_wanted_least_makes_room_first() -> None:
    node = create_node(device=3, a=GPU, b=GPU, c=GPU)
    made = plan_all([node], expect("a", 0.9), expect("b", 0.3), expect("c", 0.6))
    assert made["n1"].eviction_order == tuple(map(name_model, "bca"))


def test_what_nobody_wants_stays_while_there_is_room() -> None:
    assert plan([create_node(device=1, host=0, a=GPU, b=DISK)])["n1"] == {"a": GPU, "b": HOST}


def test_a_model_leaves_ahead_of_those_who_would_wait_for_its_leaving() -> None:
    node = create_node(device=1, a=GPU, b=HOST, c=HOST)
    others = [expect(letter, 0.4) for letter in "bc"]
    assert plan([node], expect("a", 0.1), *others)["n1"]["a"] is HOST
    assert plan([node], expect("a", 0.9), *others)["n1"]["a"] is GPU
    roomy = replace(node, memory=replace_budget(node, 4))
    assert plan([roomy], expect("a", 0.1), *others)["n1"]["a"] is GPU  # nobody waits for it


def replace_budget(node: NodeState, device: int):
    """The node's memory with another device."""
    return create_node(device=device).memory


def test_a_pin_and_a_class_hold_against_any_demand() -> None:
    node = create_node(device=1, host=1, a=DISK, b=GPU, c=DISK)
    wanted = expect("b", 1.0), expect("c", 1.0)
    assert plan([node], *wanted, rules=[rule("a", GPU)])["n1"]["a"] is GPU
    hot = rule("a", service_class=ServiceClass.ALWAYS_HOT)
    always = change_model(node, "a", service_class=hot.service_class)
    assert plan([always], *wanted)["n1"]["a"] is GPU
    warm = change_model(node, "a", service_class=ServiceClass.WARM)
    assert plan([warm], *wanted)["n1"]["a"] is HOST
    assert plan([node], *wanted, settings=QUIET)["n1"]["a"] is DISK  # the control


def test_a_rule_ends_when_it_is_said_to() -> None:
    node = create_node(device=1, host=1, a=HOST)
    for until, tier in ((NOW_S + 1, GPU), (NOW_S, HOST)):
        assert plan([node], rules=[rule("a", GPU, int(until))])["n1"]["a"] is tier


def test_what_operators_send_away_comes_back_for_a_request_only() -> None:
    node = create_node(device=1, a=GPU)
    away = [rule("a", DISK)]
    assert plan([node], expect("a", 1.0), rules=away)["n1"]["a"] is DISK
    busy = change_model(node, "a", num_in_flight=1)
    assert plan([busy], expect("a", 1.0), rules=away)["n1"]["a"] is GPU


def test_every_region_keeps_what_is_asked_for_there() -> None:
    nodes = [create_node(f"n{r}", r, device=1, a=HOST, b=HOST) for r in (WEUR, WNAM)]
    made = plan(nodes, expect("a", 0.9, WEUR), expect("b", 0.9, WNAM))
    assert made == {"nweur": {"a": GPU, "b": HOST}, "nwnam": {"a": HOST, "b": GPU}}


def test_a_model_is_placed_only_where_its_requests_may_go() -> None:
    far = create_node("far", WNAM, device=1, a=DISK)
    near = create_node("near", WEUR, device=1, a=DISK)
    bound = plan([far, near], expect("a", 1.0, WNAM, (WEUR,)))
    assert bound == {"far": {"a": DISK}, "near": {"a": GPU}}
    free = plan([far, near], expect("a", 1.0, WNAM))
    assert free["far"]["a"] is GPU  # the control
    pinned = plan([far, near], expect("a", 1.0, WNAM, (WEUR,)), rules=[rule("a", GPU)])
    assert pinned["far"]["a"] is DISK


def test_a_model_is_placed_where_accounts_prefer_to_be_served() -> None:
    near, far = create_node("near", WEUR, device=1, a=DISK), create_node("far", WNAM, a=DISK)

    def place(*demands: Demand, **weights: float) -> set[str]:
        made = plan([near, far], *demands, settings=PlannerSettings(**weights))  # type: ignore[arg-type]
        return {name for name, tiers in made.items() if tiers["a"] is GPU}

    picky = expect("a", 1.0, WEUR, None, (WNAM,))
    assert place(picky) == {"far"}
    assert place(picky, preference_s=0.0) == place(expect("a", 1.0, WEUR)) == {"near"}  # controls
    assert place(picky, expect("a", 1.0, WEUR)) == {"far", "near"}
    assert place(expect("a", 1.0, WEUR, (WEUR,), (WNAM,))) == {"near"}  # the law comes first


def test_a_preference_wakes_a_second_replica_where_there_is_room_and_only_there() -> None:
    home = create_node("home", WEUR, a=GPU)

    def place(b: float, tier: Tier = DISK) -> dict[str, Tier]:
        far = create_node("far", WNAM, device=1, a=HOST, b=tier)
        picky = expect("a", 1.0, WEUR, None, (WNAM,))
        return plan([home, far], picky, expect("b", b, WNAM))["far"]

    assert place(0.0)["a"] is GPU
    assert place(1.0, GPU) == {"a": HOST, "b": GPU}  # who would wait for longer goes before


def test_a_burst_gets_another_replica_and_keeps_it_until_it_is_calm() -> None:
    def place(num_in_flight: int, second: Tier) -> Tier:
        busy = change_model(create_node("n1", a=GPU), "a", num_in_flight=num_in_flight)
        other = create_node("n2", device=1, a=second, b=GPU)
        demands = expect("a", 0.9), expect("b", 0.9)
        return plan([busy, other], *demands)["n2"]["a"]

    assert place(16, HOST) is HOST
    assert place(17, HOST) is GPU
    assert place(9, GPU) is GPU
    assert place(8, GPU) is HOST


def test_no_replica_is_started_where_the_burst_s_requests_may_not_go() -> None:
    busy = change_model(create_node("n1", WEUR, a=GPU), "a", num_in_flight=100)
    abroad = create_node("n2", WNAM, a=HOST)
    assert plan([busy, abroad], expect("a", 1.0, WEUR, (WEUR,)))["n2"]["a"] is HOST
    assert plan([busy, abroad], expect("a", 1.0, WEUR))["n2"]["a"] is GPU  # the control


LETTERS = "abcdef"
TIERS = st.sampled_from([GPU, HOST, DISK, Tier.REMOTE])


@st.composite
def draw_fleet(draw: st.DrawFn) -> FleetState:
    """A few nodes of two regions, with requests, classes and rules."""
    nodes: list[NodeState] = []
    for place in range(draw(st.integers(1, 3))):
        tiers = {letter: draw(TIERS) for letter in draw(st.sets(st.sampled_from(LETTERS)))}
        region = draw(st.sampled_from([WEUR, WNAM]))
        device, host = draw(st.integers(1, 4)), draw(st.integers(1, 6))
        node = create_node(f"n{place}", region, device, host, **tiers)
        for letter in tiers:
            node = change_model(
                node,
                letter,
                weights_bytes=draw(st.integers(1, 3)) * GIB // 2,
                num_in_flight=draw(st.sampled_from([0, 0, 0, 1, 40])),
                service_class=draw(st.sampled_from([ServiceClass.BEST_EFFORT, *ServiceClass])),
            )
        nodes.append(node)
    rules: dict[str, PlacementRule] = {}
    for letter in draw(st.sets(st.sampled_from(LETTERS), max_size=2)):
        rules[name_model(letter)] = rule(letter, draw(st.sampled_from([GPU, HOST, DISK, None])))
    return FleetState(tuple(nodes), {(WEUR, WNAM): 0.1}, rules)


DEMANDS = st.lists(
    st.builds(
        expect,
        st.sampled_from(LETTERS),
        st.floats(0, 1),
        st.sampled_from([WEUR, WNAM]),
        st.sampled_from([None, (WEUR,), (WNAM,), ()]),
        st.sampled_from([(), (WEUR,), (WNAM,)]),
    ),
    max_size=8,
)


def make(state: FleetState, demands: list[Demand]) -> tuple[PlacementPlan, ...]:
    """The plans."""
    return plan_placement(state, demands, PlannerSettings(), NOW_S, 7)


@settings(max_examples=80, deadline=None)
@given(draw_fleet(), DEMANDS)
def test_every_plan_fits_is_whole_and_is_lawful(state: FleetState, demands: list[Demand]) -> None:
    plans = make(state, demands)
    assert plans == make(state, demands)  # the same again
    assert [made.node_id for made in plans] == [node.node_id for node in state.nodes]
    for node, made in zip(state.nodes, plans, strict=True):
        tiers = {target.name: target.tier for target in made.targets}
        assert tiers.keys() == node.models.keys()
        near = {name for name in tiers if Tier.GPU in (tiers[name], node.models[name].tier)}
        assert near <= set(made.eviction_order)
        assert len(set(made.eviction_order)) == len(made.eviction_order)
        on_device = [node.models[name].device_bytes for name in tiers if tiers[name] is GPU]
        in_host = [node.models[name].weights_bytes for name in tiers if tiers[name] is HOST]
        assert sum(on_device) <= node.memory.device_budget_bytes
        assert sum(in_host) <= node.memory.host_budget_bytes
        for name, tier in tiers.items():
            model = node.models[name]
            asked = [demand for demand in demands if demand.key.model == name]
            is_lawful = not asked or any(demand.key.may_use(node.region) for demand in asked)
            came_nearer = tier is GPU is not model.tier or (tier is HOST and model.tier is DISK)
            if came_nearer and not model.num_in_flight:
                assert is_lawful
