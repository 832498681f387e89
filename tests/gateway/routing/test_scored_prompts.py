"""A prompt that is to be scored is computed anew, and so says nothing of what its node has cached.

`gpu_pool.engine.sequence`: only computing tells scores. The node is in order and says 0 cached.
"""

import pytest

from contracts.grant import RetentionClass
from contracts.inference import GenerateRequest, SamplingParams, TextPrompt
from gateway.routing.fleet import Fleet
from gateway.routing.route_plan import RouteNeed
from tests.gateway.routing.fleet_words import MODEL
from tests.gateway.routing.test_locality import create_single

TEXT = "A prompt of a thousand tokens or so. " * 110
NUM_TOKENS = 1000


def describe(fleet: Fleet, salt: bytes, *, is_scored: bool = False) -> RouteNeed:
    """The same text of an account."""
    sampling = SamplingParams(num_prompt_logprobs=1 if is_scored else None)
    request = GenerateRequest(model=MODEL, prompt=TextPrompt(text=TEXT), sampling=sampling)
    return fleet.locality.describe(request, None, salt * 32, RetentionClass.STANDARD, None)


def ask(fleet: Fleet, need: RouteNeed, num_cached: int) -> int:
    """Tokens that were expected to be cached at the node, which takes the request."""
    plan = fleet.plan(need)
    fleet.locality.note_accepted(need, plan, NUM_TOKENS, num_cached)
    fleet.release(plan)
    return plan.num_cached_tokens


def test_nothing_of_it_is_expected_to_be_cached() -> None:
    fleet = create_single()
    ask(fleet, describe(fleet, b"1"), 0)
    assert ask(fleet, describe(fleet, b"1"), NUM_TOKENS) > NUM_TOKENS / 2  # the control
    assert ask(fleet, describe(fleet, b"1", is_scored=True), 0) == 0


@pytest.mark.parametrize("is_scored", [False, True])
def test_one_accounts_scored_prompts_make_no_cache_smaller_for_others(is_scored: bool) -> None:
    """The cache holds all with room to spare; in the control nothing is scored."""
    fleet = create_single()
    for number in range(42):
        ask(fleet, describe(fleet, b"%c" % (65 + number)), 0)
    for _ in range(30):
        asked = describe(fleet, b"%c" % 106, is_scored=is_scored)
        ask(fleet, asked, 0 if is_scored else NUM_TOKENS)
    assert fleet.plan(describe(fleet, b"A")).num_cached_tokens > NUM_TOKENS / 2
