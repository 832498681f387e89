"""Cut-offs against a plain loop over sorted probabilities."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from contracts.inference import SamplingParams
from gpu_pool.sampling.filters import compute_cutoffs


def keep_in_plain_python(scores: list[float], sampling: SamplingParams) -> set[int]:
    """Tokens left by top-k, then top-p, then min-p."""
    order = sorted(range(len(scores)), key=lambda i: -scores[i])
    if sampling.top_k:
        order = order[: sampling.top_k]
    total = sum(math.exp(scores[i]) for i in order)
    kept: list[int] = []
    mass = 0.0
    for i in order:
        if kept and mass >= sampling.top_p * total and sampling.top_p < 1:
            break
        kept.append(i)
        mass += math.exp(scores[i])
    return {i for i in kept if i == order[0] or scores[i] >= math.log(sampling.min_p or 1e-300)}


params = st.builds(
    SamplingParams,
    top_k=st.integers(0, 30),
    top_p=st.sampled_from([0.0, 0.1, 0.5, 0.9, 0.99, 1.0]),
    min_p=st.sampled_from([0.0, 0.01, 0.2, 1.0]),
)


@given(st.lists(params, min_size=1, max_size=4), st.integers(0, 1000), st.integers(2, 60))
def test_what_is_kept_is_what_the_definitions_say(
    sampling: list[SamplingParams], seed: int, vocab_size: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(len(sampling), vocab_size, generator=generator).mul_(3)
    scores -= scores.amax(-1, keepdim=True)
    cutoffs = compute_cutoffs(scores, sampling)
    for i, row in enumerate(sampling):
        kept = set(range(vocab_size))
        if cutoffs is not None:
            kept = set((scores[i] >= cutoffs[i]).nonzero().flatten().tolist())
        assert kept == keep_in_plain_python(scores[i].tolist(), row)


def test_rows_without_filters_cost_nothing() -> None:
    assert compute_cutoffs(torch.zeros(2, 5), [SamplingParams(), SamplingParams()]) is None


def test_tokens_that_tie_with_the_last_one_are_kept() -> None:
    cutoffs = compute_cutoffs(torch.tensor([[0.0, -1.0, -1.0, -2.0]]), [SamplingParams(top_k=2)])
    assert cutoffs is not None
    assert cutoffs.item() == -1.0
