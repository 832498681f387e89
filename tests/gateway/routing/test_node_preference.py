"""Among the nodes that may: whoever should answer first, and where a session was."""

import msgspec
import pytest
from msgspec.structs import replace

from contracts.errors import (
    NoEndpoint,
    PoolSaturated,
    UnsupportedFeature,
)
from contracts.ids import NodeId
from contracts.node_roles import NodeRole
from gateway.routing.route_plan import (
    Hints,
    NodeSnapshot,
    Pick,
    Rejection,
    RoutePlan,
)
from gateway.routing.search import measure_sharing_per_token
from tests.gateway.routing.fleet_words import (
    BOUND,
    BOUNDS,
    FULL,
    MODEL,
    NEED,
    choose,
    create_card,
    create_load,
    create_node,
)


def test_the_least_loaded_is_chosen_and_the_first_of_equals() -> None:
    nodes = [
        create_node("a", loads={MODEL: create_load(running=2)}),
        create_node("b", loads={MODEL: create_load(running=1, waiting=1)}),
        create_node("c", loads={MODEL: create_load(running=1)}),
        create_node("d", loads={MODEL: create_load(running=1)}),
    ]
    plan = choose(*nodes)
    assert (plan.node_id, plan.pick, plan.num_seen) == ("c", "cost", 4)
    assert plan.rejected == ()


def test_what_was_sent_since_the_last_report_counts_as_load() -> None:
    nodes = [create_node("a"), create_node("b", loads={MODEL: create_load(running=1)})]
    assert choose(*nodes).node_id == "a"
    assert choose(*nodes, sent={"a": 2}).node_id == "b"


def test_what_was_sent_fills_a_node_up_before_it_says_so() -> None:
    with pytest.raises(PoolSaturated):
        choose(create_node("a"), sent={"a": BOUNDS.max_waiting_per_model})


def test_a_cold_node_is_the_last_resort_and_no_more() -> None:
    cold = create_node("cold", loads={MODEL: create_load(is_ready=False)})
    busy = create_node("busy", loads={MODEL: create_load(running=100)})
    plan = choose(cold, busy)
    assert plan.node_id == "busy"
    assert plan.rejected == (("cold", Rejection.MODEL_NOT_READY),)
    assert choose(cold, create_node("away", is_connected=False)).node_id == "cold"


def test_a_node_for_prompts_answers_alone_only_as_the_last_resort() -> None:
    prefill = create_node("prefill", role=NodeRole.PREFILL)
    busy = create_node("busy", role=NodeRole.DECODE, loads={MODEL: create_load(running=100)})
    plan = choose(prefill, busy)
    assert (plan.node_id, plan.rejected) == ("busy", (("prefill", Rejection.PREFILL_ONLY),))
    assert choose(prefill, create_node("away", is_connected=False)).node_id == "prefill"
    assert choose(create_node("mixed"), busy).node_id == "mixed"  # the control


@pytest.mark.parametrize("reason", [Rejection.BREAKER_OPEN, Rejection.ON_PROBATION])
def test_a_node_that_has_failed_lately_is_the_last_resort(reason: Rejection) -> None:
    busy = create_node("busy", loads={MODEL: create_load(running=100)})
    plan = choose(create_node("bad"), busy, troubled={"bad": reason})
    assert (plan.node_id, plan.rejected) == ("busy", (("bad", reason),))
    assert choose(create_node("bad"), troubled={"bad": reason}).node_id == "bad"
    assert choose(create_node("bad"), busy).node_id == "bad"  # the control


def test_nobody_waits_for_a_full_node_that_is_in_trouble_itself() -> None:
    need = msgspec.structs.replace(NEED, may_wait=True)
    full = create_node("full", loads={MODEL: create_load(waiting=1000)})
    trouble = {"bad": Rejection.ON_PROBATION}
    with pytest.raises(PoolSaturated):  # the control: one in order is worth waiting for
        choose(create_node("bad"), full, need=need, troubled=trouble)
    of_all = trouble | {"full": Rejection.ON_PROBATION}
    assert choose(create_node("bad"), full, need=need, troubled=of_all).node_id == "bad"


def test_whoever_will_not_wait_is_sent_only_where_nobody_waits() -> None:
    need = msgspec.structs.replace(NEED, rejects_busy=True)
    queue = create_node("queue", loads={MODEL: create_load(waiting=1)})
    slow = create_node("slow", loads={MODEL: create_load(running=1000)})
    assert choose(queue, slow).node_id == "queue"  # the control
    assert choose(queue, slow, need=need).node_id == "slow"
    with pytest.raises(PoolSaturated):
        choose(queue, need=need)


def test_half_an_answer_goes_on_only_with_the_same_weights() -> None:
    need = msgspec.structs.replace(NEED, revision="r2")
    with pytest.raises(NoEndpoint):
        choose(create_node("a"), need=need)
    newer = msgspec.structs.replace(create_card(), revision="r2")
    plan = choose(create_node("a"), create_node("b", cards={MODEL: newer}), need=need)
    assert (plan.node_id, plan.rejected) == ("b", (("a", Rejection.OTHER_REVISION),))


def test_what_is_too_long_for_a_short_context_goes_to_a_longer_one() -> None:
    need = msgspec.structs.replace(NEED, min_context=4097)
    long = msgspec.structs.replace(create_card(), context_window=4097)
    assert choose(create_node("a"), create_node("b", cards={MODEL: long})).node_id == "a"
    plan = choose(create_node("a"), create_node("b", cards={MODEL: long}), need=need)
    assert (plan.node_id, plan.rejected) == ("b", (("a", Rejection.CONTEXT),))


def test_what_must_leave_nothing_goes_only_where_nothing_is_kept() -> None:
    may_keep = {MODEL: msgspec.structs.replace(create_card(), engine="vllm", may_keep=True)}
    need = msgspec.structs.replace(NEED, leaves_nothing=True)
    keeping = create_node("a", cards=may_keep)
    with pytest.raises(UnsupportedFeature, match="retention"):
        choose(keeping, need=need)
    busy = create_node("b", loads={MODEL: create_load(running=500, waiting=9)})
    plan = choose(keeping, busy, need=need)
    assert (plan.node_id, plan.rejected) == ("b", (("a", Rejection.RETENTION),))
    assert choose(keeping, busy).node_id == "a"  # the control: others need not mind


WORDY = msgspec.structs.replace(NEED, num_output_tokens=1000)


def test_others_answers_are_waited_for_as_long_as_the_opening_of_ones_own_takes() -> None:
    def choose_when(num_running: int) -> str:
        talking = create_node("talking", loads={MODEL: create_load(running=num_running)})
        queue = create_node("queue", loads={MODEL: create_load(num_queued_tokens=2000)})
        return choose(talking, queue, need=WORDY).node_id

    assert choose_when(9) == "talking"  # a fifth of 1,000 tokens is a tenth of a second at each
    assert choose_when(11) == "queue"


def test_a_node_that_has_had_more_requests_is_no_faster() -> None:
    """It may have generated more tokens a second than a node with fewer, which is like it."""

    def choose_when(**figures: float) -> str:
        busy = create_load(running=40, decode_tokens_per_s=4000.0, **figures)
        other = create_load(running=30, decode_tokens_per_s=2000.0, **figures)
        nodes = create_node("busy", loads={MODEL: busy}), create_node("other", loads={MODEL: other})
        return choose(*nodes, need=WORDY).node_id

    assert choose_when(decode_step_s=0.02) == "other"
    assert choose_when() == "busy"  # the control: nodes of before do not tell


def test_nodes_of_before_are_not_compared_by_the_others_steps() -> None:
    """Of four alike, two tell their steps: by those the others would look slow, having had fewer
    requests at once, or fast, having had more.
    """

    def choose_when(num_at_old: int, most_per_s: float) -> str:
        rate = {"decode_tokens_per_s": most_per_s}
        old = create_load(running=num_at_old, **rate)
        new = create_load(running=20, decode_step_s=0.02, **rate)
        nodes = create_node("new", loads={MODEL: new}), create_node("old", loads={MODEL: old})
        return choose(*nodes, need=WORDY).node_id

    assert choose_when(19, 1000.0) == "old"
    assert choose_when(21, 9000.0) == "new"


def test_a_few_large_requests_are_as_much_as_many_small_ones() -> None:
    def choose_among(**changes: int) -> str:
        told = {"running": 2, "num_free_blocks": 400, "num_blocks": 1000}
        few = create_load(**told | changes)
        many = create_load(running=10, num_blocks=1000, num_free_blocks=900)
        nodes = create_node("few", loads={MODEL: few}), create_node("many", loads={MODEL: many})
        return choose(*nodes, need=WORDY).node_id

    assert choose_among() == "many"
    assert choose_among(num_free_blocks=950) == "few"  # the control
    for nothing in (0, 1000):  # of who does not tell, requests are counted
        assert choose_among(num_blocks=nothing, num_free_blocks=nothing, running=12) == "many"
        assert choose_among(num_blocks=nothing, num_free_blocks=nothing) == "few"


def test_a_line_for_places_is_waited_for_as_long_as_its_answers_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def choose_beside(running: int, *, told: int = 64) -> str:
        line = create_load(running=64, waiting=8, max_running=told, **_hold(4000))
        free = create_load(running=running, max_running=told, **_hold(6000))
        nodes = create_node("line", loads={MODEL: line}), create_node("free", loads={MODEL: free})
        return choose(*nodes, need=WORDY).node_id

    assert choose_beside(50) == "free"  # though it holds half as much again
    assert choose_beside(64) == "free"  # where one answer has to end, not nine
    assert choose_beside(64, told=0) == "line"  # of who does not say what it has, nobody knows
    monkeypatch.setattr(
        "gateway.routing.search.count_places", lambda pace, _: (pace.num_requests, 0)
    )
    assert choose_beside(50) == "line"  # the control


def _hold(num_blocks: int) -> dict[str, int]:
    """What a load says of so many blocks in use, and prompts that are all computed."""
    return {"num_blocks": 10_000, "num_free_blocks": 10_000 - num_blocks, "num_queued_tokens": 1}


def test_what_nobody_holds_divides_nothing() -> None:
    idle = create_load(num_free_blocks=100)
    assert measure_sharing_per_token([]) == 0.0
    assert choose(*(create_node(name, loads={MODEL: idle}) for name in "ab")).node_id == "a"


# -- seconds -------------------------------------------------------------------------------------

LONG = msgspec.structs.replace(NEED, num_prompt_tokens=8000, num_prompt_bytes=32_000)


def test_a_queue_is_as_long_as_the_node_is_slow() -> None:
    fast = create_load(num_queued_tokens=9000, prefill_tokens_per_s=20_000.0)
    slow = create_load(num_queued_tokens=3000, prefill_tokens_per_s=2_000.0)
    nodes = create_node("slow", loads={MODEL: slow}), create_node("fast", loads={MODEL: fast})
    assert choose(*nodes, need=LONG).node_id == "fast"


def test_a_warm_cache_wins_until_its_queue_costs_more_than_it_saves() -> None:
    def choose_among(queued_at_warm: int, *others: NodeSnapshot) -> RoutePlan:
        warm = create_node("warm", loads={MODEL: create_load(num_queued_tokens=queued_at_warm)})
        hints = Hints((NodeId("warm"),), (), lambda node_id: 16_000 if node_id == "warm" else 0)
        return choose(create_node("cold"), *others, warm, need=LONG, hints=hints)

    # One of two nodes has work, so that half of the time is in use, and work costs twice its time.
    plan = choose_among(7_900)
    assert (plan.node_id, plan.pick) == ("warm", Pick.PREFIX)
    assert (plan.num_cached_tokens, plan.num_new_tokens) == (4000, 4000)
    assert choose_among(8_100).node_id == "cold"


def test_work_is_dearer_the_busier_the_nodes_are() -> None:
    """What a cache saves is saved for all who wait: (nodes + 2) / (idle ones + 1) times."""

    def choose_when(num_busy: int, queued_at_warm: int) -> str:
        busy = create_load(num_queued_tokens=100_000)
        others = [create_node(f"busy-{i}", loads={MODEL: busy}) for i in range(num_busy)]
        warm = create_node("warm", loads={MODEL: create_load(num_queued_tokens=queued_at_warm)})
        hints = Hints((NodeId("warm"),), (), lambda node_id: 16_000 if node_id == "warm" else 0)
        return choose(create_node("cold"), *others, warm, need=LONG, hints=hints).node_id

    assert choose_when(0, 7_900) == "warm"
    assert choose_when(0, 15_900) == "cold"  # the control: there is room, so work is cheap
    assert choose_when(4, 15_900) == "warm"
    assert choose_when(4, 16_100) == "cold"


@pytest.mark.parametrize(("usual", "longest"), [(0, 8_000), (4_000, 5_000), (500, 20_000)])
def test_a_long_prompt_stands_in_a_longer_line_for_its_cache(usual: int, longest: int) -> None:
    """Half of the time is in use. Where nothing is known a second of work keeps others waiting for
    one. Usual work is at the end of a line for longer, and what is far longer than usual, be it at
    the warm node or the cold one, for four seconds.
    """

    def choose_when(queued_at_warm: int) -> str:
        warm = create_node("warm", loads={MODEL: create_load(num_queued_tokens=queued_at_warm)})
        hints = Hints((NodeId("warm"),), (), lambda node_id: 16_000 if node_id == "warm" else 0)
        nodes = create_node("cold"), warm
        return choose(*nodes, need=LONG, hints=hints, usual_new_tokens=usual).node_id

    assert choose_when(longest - 100) == "warm"
    assert choose_when(longest + 100) == "cold"


def test_full_memory_costs_more_and_more() -> None:
    nodes = [
        create_node("full", loads={MODEL: create_load(num_free_blocks=2)}),
        create_node("used", loads={MODEL: create_load(running=8, num_free_blocks=60)}),
    ]
    assert choose(*nodes).node_id == "used"


def test_the_one_good_node_among_many_is_found_even_if_it_is_not_drawn() -> None:
    nodes = [create_node(f"n{i}", is_draining=i != 3) for i in range(40)]
    assert choose(*nodes).node_id == "n3"


def test_a_session_stays_where_it_was_unless_that_is_busier_than_the_others() -> None:
    def choose_when(used_blocks: int) -> RoutePlan:
        own = create_load(num_blocks=10_000, num_free_blocks=10_000 - used_blocks)
        other = create_load(num_blocks=10_000, num_free_blocks=9_000)
        nodes = [create_node("own", loads={MODEL: own})]
        nodes += [create_node(f"n{i}", loads={MODEL: other}) for i in range(3)]
        return choose(*nodes, hints=Hints(pinned=NodeId("own")))

    plan = choose_when(1_100)
    assert (plan.node_id, plan.pick) == ("own", Pick.SESSION)
    assert choose_when(1_250).node_id != "own"


def test_a_session_stands_in_line_only_for_what_its_cache_is_worth() -> None:
    def choose_with(num_cached: int, waiting: int) -> RoutePlan:
        own = create_load(running=64, waiting=waiting, max_running=64, **_hold(4000))
        other = create_load(running=50, max_running=64, **_hold(4000))
        nodes = create_node("own", loads={MODEL: own}), create_node("other", loads={MODEL: other})
        hints = Hints(
            measure_cached=lambda node_id: num_cached if node_id == "own" else 0,
            pinned=NodeId("own"),
        )
        need = msgspec.structs.replace(LONG, num_output_tokens=1000)
        return choose(*nodes, need=need, hints=hints)

    assert choose_with(8_000, 0).node_id == "own"  # half a second for one of work, counted fourfold
    assert choose_with(8_000, 8).node_id == "other"  # four and a half
    assert choose_with(0, 0).node_id == "other"


def test_a_session_moves_when_its_node_is_in_trouble_or_abroad() -> None:
    hints = Hints(pinned=NodeId("own"))
    other = create_node("other")
    assert choose(create_node("own"), other, hints=hints).node_id == "own"  # the control
    assert choose(create_node("own", is_draining=True), other, hints=hints).node_id == "other"
    assert choose(create_node("own", "enam"), other, hints=hints, need=BOUND).node_id == "other"
    gone = Hints(pinned=NodeId("nobody"))
    assert choose(other, hints=gone).node_id == "other"


def test_several_prompts_go_only_to_nodes_that_take_so_many() -> None:
    before = create_node("before")  # of a version that would answer the first alone
    many = create_node(
        "many",
        cards={MODEL: replace(create_card(), max_prompts=8)},
        loads={MODEL: create_load(running=100)},
    )
    need = replace(NEED, num_prompts=8)
    plan = choose(before, many, need=need)
    assert (plan.node_id, plan.rejected) == ("many", (("before", Rejection.PROMPTS),))
    assert choose(before, many).node_id == "before"  # the control
    for nodes in ([before], [before, many]):
        with pytest.raises(UnsupportedFeature) as caught:
            choose(*nodes, need=replace(NEED, num_prompts=9))
        assert caught.value.param == "prompt"


def test_several_prompts_wait_for_a_node_that_takes_them() -> None:
    full = create_node(
        "full", cards={MODEL: replace(create_card(), max_prompts=8)}, loads={MODEL: FULL}
    )
    with pytest.raises(PoolSaturated):
        choose(create_node("before"), full, need=replace(NEED, num_prompts=8))


def test_bad_words_go_only_to_nodes_that_keep_them_out() -> None:
    before = create_node("before")  # of a version that would write them
    able = create_node(
        "able",
        cards={MODEL: replace(create_card(), takes_bad_words=True)},
        loads={MODEL: create_load(running=100)},
    )
    need = replace(NEED, has_bad_words=True)
    plan = choose(before, able, need=need)
    assert (plan.node_id, plan.rejected) == ("able", (("before", Rejection.BAD_WORDS),))
    assert choose(before, able).node_id == "before"  # the control
    with pytest.raises(UnsupportedFeature) as caught:
        choose(before, need=need)
    assert caught.value.param == "bad_words"


def test_bad_words_wait_for_a_node_that_keeps_them_out() -> None:
    full = create_node(
        "full", cards={MODEL: replace(create_card(), takes_bad_words=True)}, loads={MODEL: FULL}
    )
    with pytest.raises(PoolSaturated):
        choose(create_node("before"), full, need=replace(NEED, has_bad_words=True))
