"""A node whose figures are absurd changes nothing in how the others are compared."""

import pytest
from msgspec.structs import replace

from contracts.ids import NodeId
from gateway.routing.route_plan import Hints, Rejection
from tests.gateway.routing.fleet_words import MODEL, choose, create_node
from tests.gateway.routing.test_sleepers_beside import ANSWER, create_busy

USUAL = create_busy(23, 230_000)
WAYS_S = {"enam": 0.001}


@pytest.mark.parametrize("figure", ["num_queued_tokens", "num_blocks"])
def test_beside_an_absurd_load_what_a_farther_node_seems_to_save_is_taken_by_others(
    figure: str,
) -> None:
    """By the mean of all, every node has less than half to do, so no farther one is doubted."""
    loads = [create_busy(running, 10_000 * running) for running in (22, 24, 23, 20, 30, 29)]
    nodes = [
        create_node(f"{region}-{place}", region, loads={MODEL: load})
        for place, (region, load) in enumerate(zip(["weur"] * 3 + ["enam"] * 3, loads, strict=True))
    ]
    odd = create_node("odd", loads={MODEL: replace(USUAL, **{figure: 10**9})})
    assert choose(*nodes, need=ANSWER, latencies_s=WAYS_S).node_id == "weur-0"  # the control
    assert choose(*nodes, odd, need=ANSWER, latencies_s=WAYS_S).node_id == "weur-0"


@pytest.mark.parametrize(
    "counts", [{"num_running": 10**6, "max_running": 0}, {"num_running": 10**9}]
)
def test_one_that_counts_absurdly_many_requests_makes_no_cache_worthless(
    counts: dict[str, int],
) -> None:
    """By the requests for each token of all, what others hold would outweigh all they save."""
    own = create_node("own", loads={MODEL: create_busy(20, 200_000)})
    other = create_node("other", loads={MODEL: create_busy(20, 199_000)})
    odd = create_node("odd", loads={MODEL: replace(USUAL, **{"max_running": 2**40} | counts)})
    need = replace(ANSWER, num_prompt_bytes=40_000, num_prompt_tokens=10_000)
    hints = Hints([NodeId("own")], measure_cached=lambda node_id: 38_000 * (node_id == "own"))
    assert choose(own, other, need=need, hints=hints).node_id == "own"  # the control
    assert choose(own, other, odd, need=need, hints=hints).node_id == "own"


def test_one_in_trouble_that_does_not_tell_what_it_holds_changes_no_comparison() -> None:
    """Nobody is compared with it: it is the last resort."""
    large, small = (
        create_node(name, loads={MODEL: replace(load, decode_tokens_per_s=2000.0)})
        for name, load in (("large", create_busy(10, 480_000)), ("small", create_busy(40, 80_000)))
    )
    mute = create_node("mute", loads={MODEL: replace(create_busy(3, 0), num_blocks=0)})
    assert choose(large, small, need=ANSWER).node_id == "small"  # the control
    troubled = {"mute": Rejection.BREAKER_OPEN}
    assert choose(large, small, mute, need=ANSWER, troubled=troubled).node_id == "small"
