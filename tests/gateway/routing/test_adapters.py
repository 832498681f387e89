"""Requests with adapters go only where they are computed, and what is cached with one is no other's
cache.
"""

import pytest
from msgspec.structs import replace

from contracts.adapters import AdapterRef
from contracts.errors import (
    AdapterUnsupported,
    NoEndpoint,
    PoolSaturated,
    ResidencyViolation,
    ServiceError,
)
from contracts.grant import RetentionClass
from contracts.ids import NodeId
from contracts.inference import GenerateRequest, SamplingParams, TextPrompt
from contracts.node_roles import NodeRole
from gateway.routing.fleet import Fleet
from gateway.routing.prefix_keys import hash_prompt
from gateway.routing.route_plan import NodeSnapshot, Rejection, RouteNeed
from gateway.sources import Sources
from tests.gateway.routing.fleet_words import (
    FULL,
    MODEL,
    NEED,
    allow,
    choose,
    create_card,
    create_fleet,
    create_load,
    create_node,
    create_report,
    create_silent_node,
)
from tests.gateway.routing.test_prefill_choice import LONG, create_prefill
from tests.gateway.routing.test_prefill_choice import choose as choose_prefill

REF = AdapterRef(weights_sha256=b"1" * 32, num_bytes=100, scale=2.0, rank=16)
OTHER = replace(REF, weights_sha256=b"2" * 32)
ADAPTED = replace(NEED, adapter=REF)


def create_taker(node_id: str, rank: int, region: str = "weur", **changes: object) -> NodeSnapshot:
    """A node whose model takes adapters of at most that rank."""
    cards = {MODEL: replace(create_card(), max_adapter_rank=rank)}
    return create_node(node_id, region, cards=cards, **changes)


def test_nodes_that_take_no_such_rank_are_passed_over_however_idle_they_are() -> None:
    busy = create_taker("taker", 16, loads={MODEL: create_load(running=50)})
    nodes = create_node("none"), create_taker("less", 15), busy
    plan = choose(*nodes, need=ADAPTED)
    assert plan.node_id == "taker"
    assert [reason for _, reason in plan.rejected] == [Rejection.ADAPTER] * 2
    assert choose(*nodes).node_id == "none"  # the control: without an adapter it is the nearest


def test_not_even_the_last_resort_is_a_node_that_takes_none() -> None:
    resort = create_taker("taker", 16, loads={MODEL: create_load(is_ready=False)})
    with pytest.raises(NoEndpoint):
        choose(create_node("none"), replace(resort, is_connected=False), need=ADAPTED)


@pytest.mark.parametrize(
    ("nodes", "need", "error", "words"),
    [
        ([create_node("a")], ADAPTED, AdapterUnsupported, "takes no LoRA"),
        (
            [create_taker("a", 8)],
            ADAPTED,
            AdapterUnsupported,
            "at most rank 8, and this one has 16",
        ),
        ([create_node("a"), create_taker("b", 16, "enam")], None, ResidencyViolation, "region"),
        ([create_node("a", "enam")], None, ResidencyViolation, "region"),
        ([create_node("a"), create_node("b", "enam")], None, AdapterUnsupported, "takes no"),
        (
            [create_node("a"), create_taker("b", 16, loads={MODEL: FULL})],
            None,
            PoolSaturated,
            "exceeded",
        ),
        ([create_node("a"), create_silent_node("b")], ADAPTED, NoEndpoint, "reached yet"),
    ],
    ids=["none", "rank", "abroad", "law_first", "nowhere", "full", "unknown"],
)
def test_the_client_is_told_what_it_can_do_about_it(
    nodes: list[NodeSnapshot], need: RouteNeed | None, error: type[ServiceError], words: str
) -> None:
    need = need or replace(allow("weur"), adapter=REF)
    with pytest.raises(error, match=words) as raised:
        choose(*nodes, need=need)
    if error is AdapterUnsupported:
        assert raised.value.param == "lora"


def test_a_second_node_is_one_that_takes_it_too() -> None:
    nodes = create_taker("a", 16), create_node("b"), create_taker("c", 64)
    need = replace(ADAPTED, tried=frozenset({NodeId("a")}))
    assert choose(*nodes, need=need).node_id == "c"


def test_a_prompt_is_computed_for_another_node_only_where_its_adapter_is_taken() -> None:
    need = replace(LONG, adapter=REF)
    cards = {MODEL: replace(create_card(), max_adapter_rank=16)}
    loads = {MODEL: create_load(running=20, prefill_tokens_per_s=8e3, decode_tokens_per_s=2e3)}
    answering = create_node("answers", role=NodeRole.DECODE, cards=cards, loads=loads)
    assert choose_prefill(create_prefill(), need=need, answering=answering) is None
    plan = choose_prefill(create_prefill(cards=cards), need=need, answering=answering)
    assert plan is not None  # the control


def test_a_prompt_of_one_adapter_is_never_taken_for_that_of_another() -> None:
    prompt, salt = TextPrompt(text="x" * 100_000), b"s" * 32

    def name(ref: AdapterRef | None) -> set[int]:
        return set(hash_prompt(prompt, MODEL, salt, ref).keys)

    named = [name(None), name(REF), name(OTHER), name(replace(REF, scale=1.0))]
    for place, keys in enumerate(named):
        assert len(keys) > 70
        assert not any(keys & others for others in named[:place])
    assert name(REF) == name(replace(REF, rank=8))  # the control: the rank says nothing of it


def create_pair() -> Fleet:
    """Two nodes that take adapters."""
    sources = Sources(monotonic_s=lambda: 0.0, unix_s=lambda: 0.0, random_bits=lambda _: 0)
    fleet = create_fleet("a", "b", sources=sources)
    for node_id in ("a", "b"):
        card = replace(create_card(), max_adapter_rank=16)
        load = create_load(num_blocks=20_000, num_free_blocks=20_000)
        fleet.record_report(replace(create_report(node_id), models=(card,), loads=(load,)))
    return fleet


def test_where_a_prompt_was_with_one_adapter_counts_for_that_one_alone() -> None:
    fleet = create_pair()

    def describe(adapter: AdapterRef | None) -> RouteNeed:
        prompt = TextPrompt(text="word " * 2000)
        request = GenerateRequest(
            model=MODEL, prompt=prompt, sampling=SamplingParams(), adapter=adapter
        )
        return fleet.locality.describe(request, None, b"s" * 32, RetentionClass.STANDARD, None)

    first = fleet.plan(describe(REF))
    fleet.locality.note_accepted(describe(REF), first, 2000, 0)
    assert describe(REF).adapter == REF
    assert fleet.plan(describe(OTHER)).num_cached_tokens == 0
    assert fleet.plan(describe(None)).num_cached_tokens == 0
    again = fleet.plan(describe(REF))
    assert (again.node_id, again.num_cached_tokens > 1000) == (first.node_id, True)  # the control


def test_a_model_is_offered_with_what_any_of_its_nodes_takes() -> None:
    fleet = create_pair()
    fleet.record_report(create_report("b"))
    card = fleet.roster.find_model(MODEL)
    assert card is not None
    assert card.max_adapter_rank == 16
    assert fleet.roster.list_models() == [card]
