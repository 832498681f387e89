"""Cut-offs against a plain loop over sorted probabilities."""

import math

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from contracts.inference import SamplingParams
from gpu_pool.kernels import cutoffs as cutoffs_module
from gpu_pool.kernels.cutoffs import Filters, cutoffs_reference, cutoffs_triton
from gpu_pool.kernels.scores import find_largest_triton, make_finite, scores_reference
from tests.gpu_pool.kernels.triton_cases import DEVICE, needs_triton

# The interpreter warns where a forbidden token's score becomes -inf, as it should.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")


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


def to_filters(sampling: list[SamplingParams]) -> Filters:
    """The tensors of parameters."""
    return Filters(
        torch.tensor([s.top_k for s in sampling], dtype=torch.int32, device=DEVICE),
        torch.tensor([s.top_p for s in sampling], dtype=torch.float32, device=DEVICE),
        torch.tensor([s.min_p for s in sampling], dtype=torch.float32, device=DEVICE),
    )


def cut_by_triton(scores_RV: Tensor, sampling: list[SamplingParams]) -> Tensor:
    """The kernels' cut-offs at temperature 1."""
    temperatures = torch.ones(len(sampling), device=DEVICE)
    largest = find_largest_triton(scores_RV)
    return cutoffs_triton(scores_RV, largest, temperatures, to_filters(sampling))


@given(st.lists(params, min_size=1, max_size=4), st.integers(0, 1000), st.integers(2, 60))
def test_what_is_kept_is_what_the_definitions_say(
    sampling: list[SamplingParams], seed: int, vocab_size: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(len(sampling), vocab_size, generator=generator).mul_(3).to(DEVICE)
    scores -= scores.amax(-1, keepdim=True)
    cutoffs = cutoffs_reference(scores, to_filters(sampling))
    for i, row in enumerate(sampling):
        kept = set(range(vocab_size))
        if cutoffs is not None:
            kept = set((scores[i] >= cutoffs[i]).nonzero().flatten().tolist())
        assert kept == keep_in_plain_python(scores[i].tolist(), row)


@needs_triton
@settings(max_examples=12, phases=[Phase.generate])
@given(st.lists(params, min_size=1, max_size=4), st.integers(0, 1000), st.integers(2, 60))
def test_the_search_keeps_what_the_definitions_say(
    sampling: list[SamplingParams], seed: int, vocab_size: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(len(sampling), vocab_size, generator=generator).mul_(3).to(DEVICE)
    scores -= scores.amax(-1, keepdim=True)
    cutoffs = cut_by_triton(scores, sampling)
    for i, row in enumerate(sampling):
        kept = set((scores[i] >= cutoffs[i]).nonzero().flatten().tolist())
        assert kept == keep_in_plain_python(scores[i].tolist(), row)


@needs_triton
@pytest.mark.parametrize("vocab_size", [1000, 8200])
def test_the_search_finds_the_references_cutoffs_over_several_parts(vocab_size: int) -> None:
    """Logits are of few values, as those of a model in bf16 are: nearly every token ties."""
    generator = torch.Generator().manual_seed(vocab_size)
    logits = torch.randn(9, vocab_size, generator=generator).mul_(4).mul(16).round().div(16)
    logits[:, 5], logits[:, 7] = float("nan"), float("-inf")
    logits[8] = 1.25
    sampling = [
        SamplingParams(top_k=1),
        SamplingParams(top_k=40, top_p=0.9),
        SamplingParams(top_p=0.95),
        SamplingParams(top_k=vocab_size - 1, top_p=0.999),
        SamplingParams(top_p=0.0),
        SamplingParams(min_p=0.02, top_k=300),
        SamplingParams(top_k=vocab_size, min_p=2.0),
        SamplingParams(),
        SamplingParams(top_k=900, top_p=0.5),
    ]
    temperatures = torch.tensor([0.3, 0.7, 1.0, 2.0, 1.0, 0.5, 1.0, 1.0, 1.5], device=DEVICE)
    logits = logits.to(DEVICE)
    filters = to_filters(sampling)
    largest = find_largest_triton(logits)
    actual = cutoffs_triton(logits, largest, temperatures, filters)
    make_finite(logits)
    expected = cutoffs_reference(scores_reference(logits, temperatures), filters)
    assert expected is not None
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=0)


@needs_triton
def test_a_greedy_row_is_not_searched() -> None:
    logits = torch.randn(2, 50, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    temperatures = torch.tensor([0.0, 1.0], device=DEVICE)
    filters = to_filters([SamplingParams(top_k=3), SamplingParams(top_k=3)])
    cutoffs = cutoffs_triton(logits, find_largest_triton(logits), temperatures, filters)
    assert cutoffs[0] == float("-inf")
    assert cutoffs[1] > -10


def test_rows_without_filters_cost_nothing() -> None:
    filters = to_filters([SamplingParams(), SamplingParams()])
    assert cutoffs_reference(torch.zeros(2, 5, device=DEVICE), filters) is None


def test_tokens_that_tie_with_the_last_one_are_kept() -> None:
    scores = torch.tensor([[0.0, -1.0, -1.0, -2.0]], device=DEVICE)
    cutoffs = cutoffs_reference(scores, to_filters([SamplingParams(top_k=2)]))
    assert cutoffs is not None
    assert cutoffs.item() == -1.0


def test_a_long_top_k_is_cut_the_same_alone_and_beside_a_row_without() -> None:
    """The mass of 2,000 tokens is not known from the best 1,024, which suffice for the other."""
    scores = torch.randn(2, 5000, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    scores -= scores.amax(-1, keepdim=True)
    sampling = [SamplingParams(top_k=2000, top_p=0.9), SamplingParams(top_p=0.1)]
    together = cutoffs_reference(scores, to_filters(sampling))
    alone = cutoffs_reference(scores[:1], to_filters(sampling[:1]))
    assert together is not None
    assert alone is not None
    assert together[0] == alone[0]


def test_a_flat_row_is_sorted_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks for a temperature of 100 pays for a whole vocabulary, and nobody beside."""
    scores = torch.randn(5, 3000, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    scores[[0, 1, 3, 4]] *= 9
    scores -= scores.amax(-1, keepdim=True)
    filters = to_filters([SamplingParams(top_p=0.9)] * 5)
    sorted_shapes: list[tuple[int, int]] = []
    sort_best = cutoffs_module._sort_best

    def note(scores_RV: Tensor, count: int) -> Tensor:
        sorted_shapes.append((scores_RV.shape[0], count))
        return sort_best(scores_RV, count)

    monkeypatch.setattr(cutoffs_module, "_sort_best", note)
    together = cutoffs_reference(scores, filters)
    assert sorted_shapes == [(5, 1024), (1, 3000)]
    assert together is not None
    for row in range(5):
        alone = cutoffs_reference(scores[row : row + 1], to_filters([SamplingParams(top_p=0.9)]))
        assert alone is not None
        assert alone[0] == together[row]
