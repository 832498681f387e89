"""What is learned from answers for all who ask a model: nobody distorts it for the others."""

from contracts.grant import RetentionClass
from contracts.inference import ChatMessage, ChatPrompt, GenerateRequest, SamplingParams
from gateway.routing.fleet import Fleet
from gateway.routing.route_plan import RouteNeed
from gateway.sources import Sources
from tests.gateway.routing.fleet_words import MODEL, create_fleet, create_report

DOCUMENT = "word " * 20_000
"""A hundred thousand bytes, which are some 25,000 tokens."""


def create_single() -> Fleet:
    """One node that is idle."""
    sources = Sources(monotonic_s=lambda: 0.0, unix_s=lambda: 0.0, random_bits=lambda _: 0)
    fleet = create_fleet("a", sources=sources)
    fleet.record_report(create_report("a"))
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
