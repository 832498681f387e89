"""Sampling parameters: nothing odd reaches the engine, and errors say the numbers."""

from typing import Any

import pytest

from contracts.errors import ContextTooLong, Forbidden, InvalidRequest
from contracts.inference import SamplingParams
from gpu_pool.server.sampling_limits import check_sampling, resolve_max_tokens

NAN, INFINITE = float("nan"), float("inf")


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
        ("max_tokens", [0, -1, 2**31]),
        ("stop", [("",), ("x",) * 65, ("x" * 1025,)]),
    ],
)
def test_values_out_of_range_are_refused_by_name(name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(InvalidRequest) as refusal:
            check_sampling(SamplingParams(**{name: value}))
        assert refusal.value.param == name


def test_ordinary_values_pass() -> None:
    check_sampling(SamplingParams())
    check_sampling(SamplingParams(max_tokens=1, temperature=0, seed=-1, stop=("a", "b"), top_k=50))


@pytest.mark.parametrize(("requested", "resolved"), [(None, 90), (1, 1), (90, 90)])
def test_max_tokens_is_resolved_within_the_context(requested: int | None, resolved: int) -> None:
    assert resolve_max_tokens(requested, 10, 100, 1000) == resolved


def test_the_grant_bounds_an_open_ended_answer() -> None:
    assert resolve_max_tokens(None, 10, 100, 50) == 40


@pytest.mark.parametrize(("requested", "num_prompt_tokens"), [(91, 10), (None, 100), (1, 500)])
def test_what_does_not_fit_in_the_context_is_refused_with_numbers(
    requested: int | None, num_prompt_tokens: int
) -> None:
    with pytest.raises(ContextTooLong, match=rf"100 tokens.* {num_prompt_tokens} "):
        resolve_max_tokens(requested, num_prompt_tokens, 100, 10**6)


def test_what_the_grant_does_not_cover_is_refused_with_numbers() -> None:
    with pytest.raises(Forbidden, match=r"covers 50 tokens.* 10 and at least 41"):
        resolve_max_tokens(41, 10, 100, 50)
