"""What requests of several prompts and choices can come to at most."""

from itertools import product, starmap

import pytest

from contracts.ids import ModelName
from contracts.inference import GenerateRequest, SamplingParams, TextPrompt
from contracts.pricing import TokenCounts
from gateway.admission.quota_arithmetic import (
    TEMPLATE_TOKENS,
    bound_request,
    correct_bound,
    limit_tokens,
)

WINDOW = 1000


def ask(num_prompts: int, num_choices: int = 1, max_tokens: int | None = 10) -> GenerateRequest:
    prompt = TextPrompt(text="a")
    return GenerateRequest(
        model=ModelName("@hearth/m"),
        prompt=prompt,
        further_prompts=(prompt,) * (num_prompts - 1),
        num_choices=num_choices,
        sampling=SamplingParams(max_tokens=max_tokens),
    )


@pytest.mark.parametrize(("num_prompts", "num_choices"), [(1, 1), (1, 4), (3, 1), (3, 4)])
def test_every_prompt_has_its_own_context_and_every_answer_its_own_tokens(
    num_prompts: int, num_choices: int
) -> None:
    request = ask(num_prompts, num_choices)
    num_answers = num_prompts * num_choices
    least = 100 + TEMPLATE_TOKENS * num_prompts
    bound = bound_request(request, 100, WINDOW)
    assert (bound.num_prompt, bound.max_output) == (least, 10 * num_answers)
    assert bound_request(request, 10**6, WINDOW).num_prompt == WINDOW * num_prompts
    told = TokenCounts(10**6, 10**6, 10**6)
    most = TokenCounts(0, WINDOW * num_prompts, 10 * num_answers)
    assert limit_tokens(told, bound) == most
    assert limit_tokens(TokenCounts(5, 2, 3), bound) == TokenCounts(5, 2, 3)


def test_no_part_of_what_a_node_says_is_more_than_the_whole_of_it() -> None:
    """Any counts, beside the same rule applied part by part."""
    bound = bound_request(ask(1, 2), 100, WINDOW)
    some = (0, 1, 9, 10, 20, 21, 999, 1000, 1001, 5000)
    for told in starmap(TokenCounts, product(some, repeat=4)):
        kept = limit_tokens(told, bound)
        assert kept.num_cached == min(told.num_cached, WINDOW)
        assert kept.num_reasoning == min(told.num_reasoning, 20)
        assert kept.num_uncached == min(told.num_uncached, WINDOW - kept.num_cached)
        assert kept.num_output == min(told.num_output, 20 - kept.num_reasoning)


def test_what_a_prompt_leaves_of_the_context_is_known_of_a_single_one_alone() -> None:
    def correct(request: GenerateRequest) -> TokenCounts:
        return correct_bound(bound_request(request, 10**6, WINDOW), 600, 100)

    assert correct(ask(1, max_tokens=None)) == TokenCounts(500, 100, 400)
    # Of three prompts with 600 tokens together one may have a single token.
    assert correct(ask(3, max_tokens=None)) == TokenCounts(500, 100, 3000)
    assert correct(ask(3)) == TokenCounts(500, 100, 30)
