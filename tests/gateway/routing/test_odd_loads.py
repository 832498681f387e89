"""Figures that no node in order has: the node is compared with the others all the same."""

import math
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.fleet import ModelLoad
from gateway.routing.cost import (
    count_held_tokens,
    count_opening_tokens,
    count_places,
    estimate_wait_s,
    estimate_work_s,
)
from gateway.routing.fleet import Fleet
from gateway.routing.pace import measure_pace
from gateway.routing.route_plan import RouteNeed, Sent
from gateway.sources import Sources
from tests.gateway.routing.fleet_words import MODEL, create_fleet, create_load, create_report

NEED = RouteNeed(MODEL, None, num_prompt_bytes=4000, num_prompt_tokens=1000, num_output_tokens=128)
HONEST = create_load(
    running=8,
    num_blocks=10_000,
    num_free_blocks=6_000,
    max_running=64,
    prefill_tokens_per_s=20_000.0,
    decode_tokens_per_s=2000.0,
    decode_step_s=0.02,
)
COUNTS = st.integers(0, 2**48 - 1)
RATES = st.floats(0, 1e12)


def create_fleet_with(**figures: Any) -> Fleet:
    """Three nodes, of which the first differs in `figures`."""
    sources = Sources(monotonic_s=lambda: 0.0, unix_s=lambda: 0.0, random_bits=lambda _: 0)
    fleet = create_fleet("odd", "b", "c", sources=sources)
    for node_id in ("odd", "b", "c"):
        load = msgspec.structs.replace(HONEST, **(figures if node_id == "odd" else {}))
        fleet.record_report(msgspec.structs.replace(create_report(node_id), loads=(load,)))
    return fleet


def count_shares(fleet: Fleet, need: RouteNeed = NEED, num_requests: int = 60) -> Counter[str]:
    """How many of some requests each node gets."""
    return Counter(str(fleet.plan(need).node_id) for _ in range(num_requests))


@pytest.mark.parametrize(
    ("figure", "value"),
    [
        ("prefill_tokens_per_s", 5e-324),
        ("decode_step_s", 1e12),
    ],
)
def test_a_node_that_says_it_stands_still_gets_nothing_while_others_have_room(
    figure: str, value: float
) -> None:
    assert count_shares(create_fleet_with()) == {"odd": 20, "b": 20, "c": 20}  # the control
    assert count_shares(create_fleet_with(**{figure: value})) == {"b": 30, "c": 30}


def test_so_does_one_of_before_that_says_so_by_its_rate() -> None:
    """It does not say how long a step takes, so that all are compared by their rates; so one node
    alone cannot make the others slow by its step.
    """
    before: dict[str, float] = {"decode_step_s": 0.0}
    assert count_shares(create_fleet_with(**before)) == {"odd": 20, "b": 20, "c": 20}
    slow = create_fleet_with(**before, decode_tokens_per_s=5e-324)
    assert count_shares(slow) == {"b": 30, "c": 30}


@pytest.mark.parametrize("figure", ["num_queued_tokens", "num_blocks"])
def test_others_are_compared_as_if_a_node_with_an_absurd_load_were_not_there(
    figure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the mean of all, what the others hold would be next to nothing beside it."""
    places: dict[str, Any] = {"num_blocks": 40_000, "max_running": 256}
    loads = {
        "busy": msgspec.structs.replace(HONEST, num_running=120, num_free_blocks=20_000, **places),
        "idle": msgspec.structs.replace(HONEST, num_running=1, num_free_blocks=39_900, **places),
    }
    odd = msgspec.structs.replace(HONEST, **places | {figure: 10**9})

    def count(**loads: ModelLoad) -> Counter[str]:
        sources = Sources(monotonic_s=lambda: 0.0, unix_s=lambda: 0.0, random_bits=lambda _: 0)
        fleet = create_fleet(*loads, sources=sources)
        for node_id, load in loads.items():
            fleet.record_report(msgspec.structs.replace(create_report(node_id), loads=(load,)))
        return count_shares(fleet)

    without = count(**loads)
    assert count(odd=odd, **loads) == without
    monkeypatch.setattr("gateway.routing.search._FAR_MORE", math.inf)
    assert count(odd=odd, **loads) != without  # the control


def test_blocks_of_no_size_make_no_node_look_empty() -> None:
    busy = {"num_running": 40, "num_free_blocks": 2000}
    short = msgspec.structs.replace(NEED, num_prompt_bytes=20, num_prompt_tokens=5)
    assert count_shares(create_fleet_with(**busy), short, 10)["odd"] == 0  # the control
    assert count_shares(create_fleet_with(**busy, block_size=0), short, 10)["odd"] == 0


@settings(max_examples=200)
@given(
    load=st.builds(
        ModelLoad,
        name=st.just(MODEL),
        is_ready=st.booleans(),
        num_running=COUNTS,
        num_waiting=COUNTS,
        num_blocks=COUNTS,
        num_free_blocks=COUNTS,
        block_size=COUNTS,
        num_queued_tokens=COUNTS,
        prefill_tokens_per_s=RATES,
        decode_tokens_per_s=RATES,
        decode_step_s=RATES,
        max_running=COUNTS,
        num_coming=COUNTS,
    ),
    wake_s=st.none() | RATES,
)
def test_no_figures_make_a_cost_that_is_no_number(load: ModelLoad, wake_s: float | None) -> None:
    pace, sent = measure_pace(load, wake_s), Sent(1, 1000, 1, 1000)
    num_new = NEED.num_prompt_tokens
    opening_s, most_s = (
        count_opening_tokens(NEED) / per_s for per_s in (pace.decode_per_s, pace.most_decode_per_s)
    )
    num_held = count_held_tokens(pace, sent) + num_new
    wait_s = estimate_wait_s(pace, sent, num_held, opening_s, count_places(pace, sent))
    work_s = estimate_work_s(pace, num_new)
    assert all(math.isfinite(seconds) for seconds in (opening_s, most_s, wait_s, work_s))
