"""Who computes the prompt: another node where that spares streams more seconds than it costs."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from contracts.errors import InvariantBroken
from contracts.ids import NodeId, RegionId
from contracts.node_roles import NodeRole
from gateway.routing.choose_node import choose_node
from gateway.routing.hand_over_meter import HandOverMeter
from gateway.routing.prefill_choice import choose_prefill
from gateway.routing.route_plan import Hints, NodeSnapshot, PrefillPlan, Rejection, RouteNeed
from tests.gateway.routing.fleet_words import (
    MODEL,
    NOW_S,
    STALE_S,
    create_card,
    create_endpoint,
    create_load,
    create_node,
    create_state,
)

LONG = RouteNeed(
    MODEL,
    None,
    num_prompt_bytes=32_000,
    num_prompt_tokens=8000,
    num_output_tokens=64,
    may_move=True,
)
RATES = {"prefill_tokens_per_s": 8000.0, "decode_tokens_per_s": 2000.0}
BUSY = create_load(running=20, **RATES)


def create_meter(per_token_s: float = 1e-5) -> HandOverMeter:
    """What a network of so many seconds a token has taught."""
    meter = HandOverMeter()
    for num_tokens in (100, 1000, 8000) * 100:
        meter.note(num_tokens, 0.002 + num_tokens * per_token_s, NOW_S)
    return meter


def create_prefill(node_id: str = "prefill", region: str = "weur", **changes: Any) -> NodeSnapshot:
    """A node that is there for prompts."""
    fields = {"role": NodeRole.PREFILL, "loads": {MODEL: create_load(**RATES)}} | changes
    return create_node(node_id, region, **fields)


def choose(
    *nodes: NodeSnapshot,
    need: RouteNeed = LONG,
    answering: NodeSnapshot | None = None,
    meter: HandOverMeter | None = None,
    hints: Hints | None = None,
    **facts: Any,
) -> PrefillPlan | None:
    """The choice where `answering`, a busy node for answers, is among `nodes`."""
    answers = answering or create_node("answers", role=NodeRole.DECODE, loads={MODEL: BUSY})
    state = create_state([answers, *nodes], **facts)
    plan = choose_node(state, need, lambda count: 0)
    assert plan.node_id == answers.node_id
    told = Hints() if hints is None else hints
    return choose_prefill(state, need, plan, meter or create_meter(), lambda count: 0, told)


def find(*nodes: NodeSnapshot, **facts: Any) -> str | None:
    """The chosen node's name."""
    plan = choose(*nodes, **facts)
    return None if plan is None else plan.node_id


def test_a_long_prompt_goes_to_a_node_for_prompts_while_answers_run() -> None:
    plan = choose(create_prefill())
    assert plan is not None
    assert (plan.node_id, plan.region, plan.num_new_tokens) == ("prefill", "weur", 8000)
    assert plan.cost_s == pytest.approx(1.0 + 0.082, rel=0.1)


def test_a_short_prompt_stays_and_so_does_a_long_one_where_the_network_is_slow() -> None:
    """The break-even moves with what was measured."""
    short = msgspec.structs.replace(LONG, num_prompt_tokens=4, num_prompt_bytes=16)
    assert find(create_prefill(), need=short) is None
    assert find(create_prefill(), meter=create_meter(per_token_s=0.01)) is None
    assert find(create_prefill()) == "prefill"  # the control


def test_where_nobody_is_disturbed_the_prompt_stays() -> None:
    idle = create_node("answers", role=NodeRole.DECODE, loads={MODEL: create_load(**RATES)})
    assert find(create_prefill(), answering=idle) is None


@pytest.mark.parametrize(
    ("prefill_per_s", "num_queued", "found"),
    [(40_000.0, 8000, None), (40_000.0, 0, "prefill"), (1000.0, 30_000, "prefill")],
)
def test_answers_wait_longer_than_the_prompt_only_for_what_their_readers_would_feel(
    prefill_per_s: float, num_queued: int, found: str | None
) -> None:
    """A quick card stops for 25 ms at a time: nobody queues elsewhere for that. Of a slow one,
    which stops for a quarter of a second, twenty readers would rather have one wait half a minute.
    """
    rates = RATES | {"prefill_tokens_per_s": prefill_per_s}
    answering = create_node(
        "answers", role=NodeRole.DECODE, loads={MODEL: create_load(running=20, **rates)}
    )
    queued = create_load(waiting=1, num_queued_tokens=num_queued, **rates)
    elsewhere = create_prefill(loads={MODEL: queued})
    assert find(elsewhere, answering=answering) == found


def test_the_prompt_stays_where_most_of_it_is_cached() -> None:
    hints = Hints(measure_cached=lambda node_id: 31_900 * (node_id == "answers"))
    state = create_state(
        [create_node("answers", role=NodeRole.DECODE, loads={MODEL: BUSY}), create_prefill()]
    )
    plan = choose_node(state, LONG, lambda count: 0, hints)
    args = (state, LONG, plan, create_meter(), lambda count: 0)
    assert choose_prefill(*args, hints) is None
    assert plan.num_cached_tokens == 7975


def test_of_two_the_one_with_the_shorter_queue_or_with_the_prompt() -> None:
    queued = create_load(waiting=1, num_queued_tokens=9000, **RATES)
    nodes = [create_prefill("queue", loads={MODEL: queued}), create_prefill("idle")]
    assert find(*nodes) == "idle"
    has_it = Hints(
        prompt_holders=(NodeId("queue"),),
        measure_cached=lambda node_id: 32_000 * (node_id == "queue"),
    )
    assert find(*nodes, hints=has_it) == "idle"  # the queue is longer than the prompt
    half = create_load(waiting=1, num_queued_tokens=3000, **RATES)
    nodes[0] = create_prefill("queue", loads={MODEL: half})
    assert find(*nodes, hints=has_it) == "queue"


def test_a_holder_is_looked_at_among_many() -> None:
    nodes = [create_prefill(f"p{n}") for n in range(40)]
    has_it = Hints(
        prompt_holders=(NodeId("p33"),), measure_cached=lambda node_id: 32_000 * (node_id == "p33")
    )
    assert find(*nodes, hints=has_it) == "p33"
    assert find(*nodes) == "p0"  # the control


DEFECTS: dict[str, dict[str, Any]] = {
    "mixed": {"role": NodeRole.MIXED, "loads": {MODEL: create_load(running=40, **RATES)}},
    "away": {"is_connected": False},
    "draining": {"is_draining": True},
    "stale": {"reported_s": STALE_S},
    "cold": {"loads": {MODEL: create_load(is_ready=False)}},
    "other_weights": {"cards": {MODEL: msgspec.structs.replace(create_card(), revision="r2")}},
    "without_model": {"cards": {}, "loads": {}},
    "without_transfer": {"kv_endpoints": {}},
    "other_engine": {"kv_endpoints": {MODEL: create_endpoint("prefill", engine="mooncake")}},
    "other_layout": {"kv_endpoints": {MODEL: create_endpoint("prefill", layout="l2")}},
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_node_that_is_not_in_order_computes_nothing_for_others(name: str) -> None:
    assert find(create_prefill(**DEFECTS[name])) is None


def test_a_node_that_takes_no_blocks_gets_none() -> None:
    mute = create_node("answers", role=NodeRole.DECODE, loads={MODEL: BUSY}, kv_endpoints={})
    assert find(create_prefill(), answering=mute) is None


def test_a_node_that_has_lost_the_model_since_it_was_chosen_gets_none() -> None:
    """Asked while a connection is read, where an error would end all that runs on it."""
    answers = create_node("answers", role=NodeRole.DECODE, loads={MODEL: BUSY})
    chosen = create_state([answers, create_prefill()])
    plan = choose_node(chosen, LONG, lambda count: 0)
    found: list[PrefillPlan | None] = []
    for loads in ({MODEL: BUSY}, {}):
        state = create_state([replace(answers, loads=loads), create_prefill()])
        found.append(choose_prefill(state, LONG, plan, create_meter(), lambda count: 0))
    assert found[0] is not None  # the control
    assert found[1] is None


def test_both_ends_are_named_so_that_an_earlier_life_is_told_apart() -> None:
    plan = choose(create_prefill())
    assert plan is not None
    lives = plan.endpoint.incarnation, plan.target.incarnation
    assert lives == ("life of prefill", "life of answers")


def test_one_that_has_failed_lately_or_this_very_request_is_left_alone() -> None:
    assert find(create_prefill(), troubled={"prefill": Rejection.BREAKER_OPEN}) is None
    tried = msgspec.structs.replace(LONG, tried=frozenset({NodeId("prefill")}))
    assert find(create_prefill(), need=tried) is None


def test_the_law_holds_for_the_prompt_as_for_the_answer() -> None:
    abroad = create_prefill("abroad", "enam")
    bound = msgspec.structs.replace(LONG, allowed_regions=(RegionId("weur"),))
    assert find(abroad, need=bound) is None
    assert find(abroad) == "abroad"  # the control


def test_a_filter_that_lets_the_wrong_ones_pass_ends_in_an_error_and_not_outside_the_law(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last look: what regions do not tell the filters do, and if they fail nobody is asked."""
    bound = msgspec.structs.replace(LONG, jurisdictions=frozenset({"eu"}))
    abroad = create_prefill(jurisdiction="us")
    assert find(abroad, need=bound) is None
    monkeypatch.setattr("gateway.routing.prefill_choice.find_rejection", lambda *_: None)
    with pytest.raises(InvariantBroken, match="left the regions"):
        find(abroad, need=bound)
    assert find(create_prefill(), need=bound) == "prefill"  # the control


def test_what_must_not_leave_its_node_does_not() -> None:
    assert find(create_prefill(), need=msgspec.structs.replace(LONG, may_move=False)) is None
