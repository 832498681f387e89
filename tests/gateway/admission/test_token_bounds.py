"""What requests of several prompts and choices can come to at most."""

import pytest

from contracts.ids import ModelName
from contracts.inference import GenerateRequest, SamplingParams, TextPrompt
from contracts.pricing import TokenCounts
from gateway.admission.quota_arithmetic import (
    TEMPLATE_TOKENS,
    bound_tokens,
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
    assert bound_tokens(request, 100, WINDOW) == (least, 10 * num_answers)
    assert bound_tokens(request, 10**6, WINDOW)[0] == WINDOW * num_prompts
    told = TokenCounts(10**6, 10**6, 10**6)
    assert limit_tokens(told, request, WINDOW) == TokenCounts(
        0, WINDOW * num_prompts, 10 * num_answers
    )
    assert limit_tokens(TokenCounts(5, 2, 3), request, WINDOW) == TokenCounts(5, 2, 3)


def test_what_a_prompt_leaves_of_the_context_is_known_of_a_single_one_alone() -> None:
    assert correct_bound(ask(1, max_tokens=None), 600, 100, WINDOW) == TokenCounts(500, 100, 400)
    # Of three prompts with 600 tokens together one may have a single token.
    assert correct_bound(ask(3, max_tokens=None), 600, 100, WINDOW) == TokenCounts(500, 100, 3000)
    assert correct_bound(ask(3), 600, 100, WINDOW) == TokenCounts(500, 100, 30)
