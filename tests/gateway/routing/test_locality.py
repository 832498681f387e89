"""What is learned from answers for all who ask a model: nobody distorts it for the others."""

from typing import Any

import msgspec
import pytest

from contracts.encoding import EncodeRequest, EncoderTask
from contracts.grant import RetentionClass
from contracts.inference import ChatMessage, ChatPrompt, GenerateRequest, SamplingParams
from contracts.prefix_keys import pack_keys
from gateway.routing.fleet import Fleet
from gateway.routing.route_choice import choose_route
from gateway.routing.route_plan import FleetState, RouteNeed, RoutePlan
from gateway.sources import Sources
from tests.gateway.routing.fleet_words import MODEL, create_fleet, create_load, create_report

DOCUMENT = "word " * 20_000
"""A hundred thousand bytes, which are some 25,000 tokens."""


REPORT = msgspec.structs.replace(
    create_report("a"),
    loads=(create_load(num_blocks=20_000, num_free_blocks=20_000, max_running=200),),
)


def create_single() -> Fleet:
    """One node that is idle."""
    sources = Sources(monotonic_s=lambda: 0.0, unix_s=lambda: 0.0, random_bits=lambda _: 0)
    fleet = create_fleet("a", sources=sources)
    fleet.record_report(REPORT)
    return fleet


def describe(fleet: Fleet, text: str, salt: bytes = b"1") -> RouteNeed:
    """What one message needs."""
    prompt = ChatPrompt(messages=(ChatMessage(role="user", content=text),))
    request = GenerateRequest(model=MODEL, prompt=prompt, sampling=SamplingParams())
    return fleet.locality.describe(request, None, salt * 32, RetentionClass.STANDARD, None)


def learn(fleet: Fleet, text: str, num_tokens: int) -> None:
    """A node has counted the tokens of a message."""
    need = describe(fleet, text, b"2")
    plan = fleet.plan(need)
    fleet.locality.note_accepted(need, plan, num_tokens, 0)
    fleet.release(plan)


def test_greetings_of_one_account_make_no_document_of_another_longer() -> None:
    """Of a greeting the template is nearly all: 30 tokens of seven bytes."""
    fleet = create_single()
    before = describe(fleet, DOCUMENT).num_prompt_tokens
    for _ in range(100):
        learn(fleet, "Hi", 30)
    assert describe(fleet, DOCUMENT).num_prompt_tokens < 1.1 * before
    for _ in range(100):  # the control: what documents have is learned from documents
        learn(fleet, DOCUMENT, 50_000)
    assert describe(fleet, DOCUMENT).num_prompt_tokens > 1.9 * before


def test_one_node_that_counts_nonsense_is_believed_within_bounds() -> None:
    fleet = create_single()
    before = describe(fleet, DOCUMENT).num_prompt_tokens
    learn(fleet, DOCUMENT, 1)
    assert describe(fleet, DOCUMENT).num_prompt_tokens > 0.8 * before
    learn(fleet, DOCUMENT, 2**31 - 1)
    assert describe(fleet, DOCUMENT).num_prompt_tokens < 1.2 * before


@pytest.mark.parametrize("is_burst", [True, False])
def test_a_prompt_that_comes_often_at_once_makes_no_cache_look_smaller(is_burst: bool) -> None:
    """The node has nothing of it cached before it has computed it once; for one request after the
    other that has nothing all the same, the control, its cache is small.
    """
    fleet = create_single()
    for number in range(10):
        learn(fleet, f"{number} {DOCUMENT}", 25_000)
    need = describe(fleet, f"other {DOCUMENT}", b"3")
    plans: list[RoutePlan] = []
    for _ in range(100):
        plans.append(fleet.plan(need))
        if not is_burst:
            fleet.locality.note_accepted(need, plans[-1], 25_000, 0)
    assert plans[1].num_cached_tokens > 0
    for plan in plans if is_burst else ():
        fleet.locality.note_accepted(need, plan, 25_000, 0)
    plan = fleet.plan(describe(fleet, f"0 {DOCUMENT}", b"2"))
    assert (plan.num_cached_tokens > 0) == is_burst


def test_what_was_on_its_way_and_has_come_is_expected_and_missed() -> None:
    fleet = create_single()
    need = describe(fleet, f"first {DOCUMENT}")
    other = describe(fleet, f"other {DOCUMENT}")
    fleet.plan(other)
    assert fleet.plan(need).is_proven  # nothing is expected
    second = fleet.plan(need)
    assert not second.is_proven
    fleet.locality.note_accepted(need, second, 25_000, 0)
    assert fleet.plan(need).is_proven
    assert not fleet.plan(other).is_proven
    keys = pack_keys(tuple(reversed(other.prefix_keys)))
    fleet.record_report(msgspec.structs.replace(REPORT, prefixes=keys))
    assert fleet.plan(other).is_proven  # the node itself has said that it has it


def test_refusals_are_counted_by_account_whatever_is_asked_for() -> None:
    fleet = create_single()
    texts = EncodeRequest(model=MODEL, task=EncoderTask.EMBED, inputs=("Hi",))

    def find_owner(salt: bytes) -> int:
        need = fleet.locality.describe(texts, None, salt * 32, RetentionClass.STANDARD, None)
        return need.owner

    assert find_owner(b"1") == describe(fleet, "Hi", b"1").owner
    assert len({find_owner(b"1"), find_owner(b"2"), 0}) == 3


def test_choices_know_what_nodes_had_to_compute_of_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what they have taken, as it was reckoned: what is placed and refused says nothing, nor
    what one node says of its cache.
    """
    fleet, states = create_single(), list[FleetState]()

    def choose(state: FleetState, *given: Any) -> RoutePlan:
        states.append(state)
        return choose_route(state, *given)

    monkeypatch.setattr("gateway.routing.fleet.choose_route", choose)
    need = describe(fleet, DOCUMENT)
    plan = fleet.plan(need)
    fleet.plan(need)
    fleet.locality.note_accepted(need, plan, 25_000, 24_000)
    fleet.plan(need)
    told = [state.usual_new_tokens for state in states]
    assert told == [0.0, 0.0, pytest.approx(plan.num_new_tokens)]


def test_one_answer_of_nonsense_makes_the_next_ones_no_longer_by_much() -> None:
    fleet = create_single()
    for num_tokens in (2**31 - 1, 0, 0):
        fleet.locality.note_output(MODEL, num_tokens)
        assert describe(fleet, "Hi").num_output_tokens < 3 * 128
    for _ in range(1000):
        fleet.locality.note_output(MODEL, 0)
    for _ in range(200):  # the control: it is learned from many, also where there were none before
        fleet.locality.note_output(MODEL, 2000)
    assert describe(fleet, "Hi").num_output_tokens > 1500
