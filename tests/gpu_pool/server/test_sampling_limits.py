"""Sampling parameters: nothing odd reaches the engine, and errors say the numbers."""

from typing import Any

import msgspec
import pytest

from contracts.errors import ContextTooLong, Forbidden, InvalidRequest
from contracts.ids import ModelName
from contracts.inference import (
    MAX_ECHO_CHARS,
    ChatMessage,
    ChatPrompt,
    GenerateRequest,
    SamplingParams,
    TextPrompt,
)
from gpu_pool.server.sampling_limits import (
    MAX_SCORES,
    check_request,
    fit_scores,
    resolve_max_tokens,
)


def ask_for(sampling: SamplingParams) -> GenerateRequest:
    """A request with these parameters."""
    prompt = TextPrompt(text="x")
    return GenerateRequest(model=ModelName("@a/b"), prompt=prompt, sampling=sampling)


NAN, INFINITE = float("nan"), float("inf")


def want(max_tokens: int | None) -> SamplingParams:
    """Sampling of a client that says how many tokens it wants."""
    return SamplingParams(max_tokens=max_tokens)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("temperature", [-0.1, NAN, INFINITE, 1e9]),
        ("top_p", [-0.1, 1.1, NAN]),
        ("min_p", [-0.1, 1.1, NAN]),
        ("top_k", [-1, 2**31]),
        ("repetition_penalty", [0.0, -1.0, NAN, INFINITE]),
        ("frequency_penalty", [NAN, INFINITE, -1000.0]),
        ("presence_penalty", [NAN, -INFINITE, 1000.0]),
        ("seed", [2**63, -(2**63) - 1]),
        ("max_tokens", [-1, 2**31]),
        ("stop", [("",), ("x",) * 65, ("x" * 1025,)]),
    ],
)
def test_values_out_of_range_are_refused_by_name(name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(InvalidRequest) as refusal:
            check_request(ask_for(SamplingParams(**{name: value})))
        assert refusal.value.param == name


def test_ordinary_values_pass() -> None:
    check_request(ask_for(SamplingParams()))
    check_request(ask_for(SamplingParams(max_tokens=0, temperature=0, seed=-1, stop=("a", "b"))))


def test_bad_words_are_bounded_and_more_than_spaces() -> None:
    plain = ask_for(SamplingParams())
    check_request(msgspec.structs.replace(plain, bad_words=("a" * 128, "\n", " b") * 42))
    for words in (("",), ("   ",), ("a", "b" * 129), ("a",) * 129):
        with pytest.raises(InvalidRequest, match="bad_words") as refusal:
            check_request(msgspec.structs.replace(plain, bad_words=words))
        assert refusal.value.param == "bad_words"
    with pytest.raises(InvalidRequest, match="by the node alone"):
        check_request(ask_for(SamplingParams(bad_spellings=((1,),))))


@pytest.mark.parametrize("num_choices", [0, -1, 129, 2**62])
def test_the_number_of_choices_is_bounded(num_choices: int) -> None:
    request = msgspec.structs.replace(ask_for(SamplingParams()), num_choices=num_choices)
    with pytest.raises(InvalidRequest) as refusal:
        check_request(request)
    assert refusal.value.param == "n"


def test_conversations_are_not_echoed() -> None:
    prompt = ChatPrompt(messages=(ChatMessage(role="user", content="x"),))
    request = msgspec.structs.replace(ask_for(SamplingParams()), echoes_prompt=True)
    check_request(request)
    with pytest.raises(InvalidRequest, match="echoed"):
        check_request(msgspec.structs.replace(request, prompt=prompt))


def test_answers_repeat_so_much_of_their_prompts_and_no_more() -> None:
    text = TextPrompt(text="x" * (MAX_ECHO_CHARS // 4))
    request = msgspec.structs.replace(
        ask_for(SamplingParams()), prompt=text, echoes_prompt=True, num_choices=2
    )
    check_request(msgspec.structs.replace(request, further_prompts=(text,)))
    too_many = msgspec.structs.replace(request, further_prompts=(text, text))
    with pytest.raises(InvalidRequest, match="may repeat 16,777,216") as caught:
        check_request(too_many)
    assert caught.value.param == "echo"
    check_request(msgspec.structs.replace(too_many, echoes_prompt=False))


@pytest.mark.parametrize(("requested", "resolved"), [(None, 90), (1, 1), (90, 90), (0, 0)])
def test_max_tokens_is_resolved_within_the_context(requested: int | None, resolved: int) -> None:
    assert resolve_max_tokens(want(requested), 10, 100, 1000) == resolved


@pytest.mark.parametrize(("num_prompt_tokens", "resolved"), [(10, 256), (950, 50), (999, 1)])
def test_a_default_is_cut_to_what_the_context_leaves(num_prompt_tokens: int, resolved: int) -> None:
    default = SamplingParams(max_tokens=256, is_max_tokens_default=True)
    assert resolve_max_tokens(default, num_prompt_tokens, 1000, 10**6) == resolved
    with pytest.raises(ContextTooLong):
        resolve_max_tokens(default, 1000, 1000, 10**6)
    if resolved < 256:  # the control: asked for in so many words, it is refused
        with pytest.raises(ContextTooLong):
            resolve_max_tokens(want(256), num_prompt_tokens, 1000, 10**6)


def test_the_grant_bounds_an_open_ended_answer() -> None:
    assert resolve_max_tokens(want(None), 10, 100, 50) == 40
    default = SamplingParams(max_tokens=256, is_max_tokens_default=True)
    assert resolve_max_tokens(default, 10, 100, 50) == 40


@pytest.mark.parametrize(("requested", "num_prompt_tokens"), [(91, 10), (None, 100), (1, 500)])
def test_what_does_not_fit_in_the_context_is_refused_with_numbers(
    requested: int | None, num_prompt_tokens: int
) -> None:
    with pytest.raises(ContextTooLong, match=rf"100 tokens.* {num_prompt_tokens} "):
        resolve_max_tokens(want(requested), num_prompt_tokens, 100, 10**6)


def test_what_the_grant_does_not_cover_is_refused_with_numbers() -> None:
    with pytest.raises(Forbidden, match=r"covers 50 tokens.* 10 and at least 41"):
        resolve_max_tokens(want(41), 10, 100, 50)


CONTEXT = 128 * 1024


def ask_for_scores(num_choices: int = 1, **sampling: Any) -> GenerateRequest:
    """A request with these parameters and choices."""
    asked = ask_for(SamplingParams(**sampling))
    return msgspec.structs.replace(asked, num_choices=num_choices)


@pytest.mark.parametrize(
    "request_",
    [
        ask_for_scores(max_tokens=None),
        ask_for_scores(max_tokens=MAX_SCORES // 21, num_logprobs=20),
        ask_for_scores(max_tokens=MAX_SCORES // 21 // 2, num_logprobs=20, num_choices=2),
        ask_for_scores(max_tokens=1, num_prompt_logprobs=1),
        ask_for_scores(max_tokens=None, num_logprobs=1),
    ],
)
def test_scores_that_are_held_change_nothing(request_: GenerateRequest) -> None:
    assert fit_scores(request_, CONTEXT, CONTEXT) == request_


@pytest.mark.parametrize(
    "sampling", [{"max_tokens": None}, {"max_tokens": CONTEXT, "is_max_tokens_default": True}]
)
def test_an_open_answer_ends_where_its_scores_would_be_too_many(sampling: dict[str, Any]) -> None:
    open_ended = ask_for_scores(num_logprobs=20, **sampling)
    fitting = fit_scores(open_ended, 10, CONTEXT).sampling
    assert (fitting.max_tokens, fitting.is_max_tokens_default) == (MAX_SCORES // 21, True)
    plain = ask_for_scores(**sampling)  # the control: without scores, nothing is cut
    assert fit_scores(plain, 10, CONTEXT) == plain


@pytest.mark.parametrize(
    "request_",
    [
        ask_for_scores(max_tokens=MAX_SCORES // 21 + 1, num_logprobs=20),
        ask_for_scores(max_tokens=MAX_SCORES // 21, num_logprobs=20, num_choices=2),
        ask_for_scores(max_tokens=0, num_prompt_logprobs=20),
        ask_for_scores(max_tokens=None, num_prompt_logprobs=4, num_logprobs=0),
        ask_for_scores(max_tokens=None, num_prompt_logprobs=2**60),
        ask_for_scores(max_tokens=None, num_logprobs=2**60),
    ],
)
def test_more_scores_than_are_held_are_refused(request_: GenerateRequest) -> None:
    with pytest.raises(InvalidRequest, match="524,288") as refusal:
        fit_scores(request_, CONTEXT, CONTEXT)
    assert refusal.value.param == "logprobs"
