"""When a request leaves the nearest nodes for farther ones, and when it does not."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from contracts.fleet import ModelLoad
from gateway.routing.farther import expect_queues
from gateway.routing.route_plan import Hints
from tests.gateway.routing.fleet_words import (
    FULL,
    MODEL,
    NEED,
    choose,
    create_load,
    create_node,
)


def test_a_far_region_is_used_when_the_near_one_takes_longer_than_the_way() -> None:
    def choose_when(queued_near: int) -> str:
        near = create_node("near", loads={MODEL: create_load(num_queued_tokens=queued_near)})
        far = create_node("far", "enam")
        return choose(near, far, latencies_s={"enam": 0.1}).node_id

    assert choose_when(150) == "near"
    assert choose_when(250) == "far"


def choose_beside(others: Sequence[ModelLoad], far: ModelLoad, latency_s: float = 0.001) -> str:
    """Who is chosen of near nodes with `others` and one that is farther."""
    near = [create_node(f"near-{i}", loads={MODEL: load}) for i, load in enumerate(others)]
    latencies_s = {"enam": latency_s}
    return choose(
        *near, create_node("far", "enam", loads={MODEL: far}), latencies_s=latencies_s
    ).node_id


def queue(*counts: int) -> list[ModelLoad]:
    """Loads with so many tokens of prompts to compute."""
    return [create_load(num_queued_tokens=count) for count in counts]


@pytest.mark.parametrize(
    ("queued", "latency_s", "chosen"),
    [(700, 0.001, "near-0"), (700, 0.0, "far"), (400, 0.001, "far")],
)
def test_what_a_farther_node_seems_to_save_is_taken_by_others(
    queued: int, latency_s: float, chosen: str
) -> None:
    """The controls: a node that is as near, and one that has so little to do that nobody else can
    be sending there.
    """
    (far,) = queue(queued)
    assert choose_beside(queue(800, 1200, 1300), far, latency_s) == chosen
    assert choose_beside(queue(1300, 1300, 1300), far, latency_s) == "far"  # all are busier


@pytest.mark.parametrize(("running", "chosen"), [(15, "near-0"), (5, "far")])
def test_so_it_is_where_engines_do_not_tell_what_they_hold(running: int, chosen: str) -> None:
    def run(count: int) -> ModelLoad:
        return replace(create_load(running=count), num_blocks=0, num_free_blocks=0)

    assert choose_beside([run(20), run(22), run(24)], run(running)) == chosen


def test_one_node_with_a_long_wait_keeps_nobody_at_its_site() -> None:
    """Be it as near or farther: it computes little in a second, so that it is no busier."""
    loads = queue(2000, 2000, 1200)
    slow = replace(loads[0], prefill_tokens_per_s=10.0)
    assert choose_beside([*loads[:2], slow], loads[2]) == "far"
    nodes = [
        create_node("near", loads={MODEL: loads[0]}),
        create_node("far", "enam", loads={MODEL: loads[2]}),
        create_node("slow", "apac", loads={MODEL: slow}),
    ]
    assert choose(*nodes, latencies_s={"enam": 0.001, "apac": 0.002}).node_id == "far"


@pytest.mark.parametrize(("latency_s", "chosen"), [(0.001, "near-0"), (0.0, "far")])
def test_a_farther_nodes_line_seems_shorter_than_it_is(latency_s: float, chosen: str) -> None:
    """What is to be computed would keep fewer waiting there, if it were as it looks."""
    near, far = queue(1500, 800)
    nodes = [create_node(f"near-{i}", loads={MODEL: near}) for i in range(3)]
    nodes.append(create_node("far", "enam", loads={MODEL: far}))
    hints = Hints(measure_cached=lambda node_id: 400 * (node_id == "near-0"))
    need = replace(NEED, num_prompt_tokens=1000, num_prompt_bytes=4000)
    latencies_s = {"enam": latency_s}
    plan = choose(*nodes, need=need, hints=hints, latencies_s=latencies_s, usual_new_tokens=500)
    assert plan.node_id == chosen


@pytest.mark.parametrize(("latency_s", "chosen"), [(1.0, "near-0"), (0.0, "far")])
def test_what_an_idle_node_spares_others_is_worth_no_long_way(
    latency_s: float, chosen: str
) -> None:
    """Near nodes answer within half a second; in the control the idle one is as near."""
    nodes = [create_node(f"near-{i}", loads={MODEL: load}) for i, load in enumerate(queue(500) * 7)]
    nodes.append(create_node("far", "enam"))
    need = replace(NEED, num_prompt_tokens=500, num_prompt_bytes=2000)
    latencies_s = {"enam": latency_s}
    plan = choose(*nodes, need=need, latencies_s=latencies_s, usual_new_tokens=120)
    assert plan.node_id == chosen


def test_lines_at_nodes_that_have_to_wake_count_as_long_as_the_others() -> None:
    assert expect_queues([4.0, 2.0], [0.1, 0.1], [0.0]) == [4.0, 2.0, 3.0]
    assert expect_queues([4.0, 2.0, 0.0], [0.1, 0.1, 0.1]) == [4.0, 2.0, 0.0]  # the control
    assert expect_queues([4.0, 2.0, 0.0], [0.0, 0.0, 2.0]) == [4.0, 2.0, 2.0]
    assert expect_queues([0.0, 2.0], [0.0, 0.0], [4.0]) == [0.0, 2.0, 4.0]


def test_farther_regions_are_not_looked_at_when_they_cannot_be_better() -> None:
    near = [create_node(f"near-{i}") for i in range(12)]
    far = [create_node(f"far-{i}", "enam") for i in range(12)]
    plan = choose(*near, *far, latencies_s={"enam": 10.0})
    assert plan.region == "weur"
    assert plan.num_seen == 1  # one was drawn again and again
    full = [replace(node, loads={MODEL: FULL}) for node in near]
    assert choose(*full, *far, latencies_s={"enam": 10.0}).region == "enam"
