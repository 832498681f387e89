"""The race of noise: kernels and reference draw the same tokens, whatever rows ask for."""

from dataclasses import fields, replace

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from gpu_pool.kernels.draw import DrawParameters, draw, draw_reference, draw_triton
from gpu_pool.plan import NO_TOKEN
from tests.gpu_pool.kernels.triton_cases import DEVICE, needs_triton

# The interpreter warns where a forbidden token's score becomes -inf, as it should.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")

rows_of_parameters = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.3, 1.0, 2.5]),
        st.sampled_from([0, 0, 1, 5, 40, 2**31 - 1]),
        st.sampled_from([1.0, 1.0, 0.0, 0.4, 0.95]),
        st.sampled_from([0.0, 0.0, 0.05, 1.0]),
        st.integers(-(2**63), 2**63 - 1),
        st.integers(0, 2**40),
    ),
    min_size=1,
    max_size=5,
)


def to_parameters(rows: list[tuple[float, int, float, float, int, int]]) -> DrawParameters:
    """Tensors of temperature, top-k, top-p, min-p, seed and position of each row."""
    dtypes = (
        torch.float32,
        torch.int32,
        torch.float32,
        torch.float32,
        torch.int64,
        torch.int64,
    )
    columns = zip(zip(*rows, strict=True), dtypes, strict=True)
    return DrawParameters(*[torch.tensor(c, dtype=d, device=DEVICE) for c, d in columns])


def create_logits(num_rows: int, vocab_size: int, seed: int) -> Tensor:
    """Logits of a model, more or less."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, vocab_size, generator=generator).mul_(3).to(DEVICE)


@needs_triton
@settings(max_examples=15, phases=[Phase.generate])
@given(rows_of_parameters, st.sampled_from([2, 7, 100, 1024, 1025]), st.integers(0, 2**20))
def test_the_kernels_draw_the_tokens_of_the_reference(
    rows: list[tuple[float, int, float, float, int, int]], vocab_size: int, seed: int
) -> None:
    parameters = to_parameters(rows)
    logits = create_logits(len(rows), vocab_size, seed)
    actual = draw_triton(logits, parameters)
    assert actual.dtype == torch.int64
    assert actual.tolist() == draw_reference(logits, parameters).tolist()


@needs_triton
@pytest.mark.parametrize("has_filters", [False, True])
@pytest.mark.parametrize("vocab_size", [8192, 16_400])
def test_rows_of_several_parts_that_lie_apart(vocab_size: int, *, has_filters: bool) -> None:
    plain = [(t, 0, 1.0, 0.0, 77 + row, 3 * row) for row, t in enumerate([0.0, 0.3, 2.5])]
    filtered = [(t, 50, 0.9, 0.01, seed, place) for t, _, _, _, seed, place in plain]
    parameters = replace(to_parameters(filtered if has_filters else plain), has_filters=has_filters)
    whole = create_logits(3, vocab_size + 16, 5)
    logits = whole[:, :vocab_size]
    whole[:, vocab_size:] = 1e9  # what no row may draw
    actual = draw_triton(logits, parameters)
    expected = draw_reference(logits.clone(), parameters)
    assert actual.tolist() == expected.tolist()
    assert actual[0] == logits[0].argmax()


@needs_triton
@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), float("-inf")])
def test_garbage_is_drawn_as_the_reference_draws_it(garbage: float) -> None:
    parameters = to_parameters([(t, k, 0.9, 0.0, 1, 2) for t in (0.0, 1.0) for k in (0, 3)])
    logits = create_logits(4, 50, 1)
    logits[:, 3] = garbage
    logits[3] = garbage
    actual = draw_triton(logits, parameters)
    assert actual.tolist() == draw_reference(logits, parameters).tolist()
    assert (actual[3] == NO_TOKEN) == (garbage != float("inf"))
    assert (actual[:3] >= 0).all()


@needs_triton
def test_of_equals_the_first_wins() -> None:
    parameters = to_parameters([(0.0, 0, 1.0, 0.0, 1, 2)])
    logits = torch.zeros(1, 20_000, device=DEVICE)
    logits[0, [9000, 9001, 17_000]] = 1.0
    assert draw_triton(logits, parameters).item() == 9000


def test_a_row_draws_the_same_alone_and_among_others() -> None:
    rows = [(0.5 * (row % 3), 7 * (row % 2), 1 - 0.1 * (row % 4), 0.0, row, 9) for row in range(12)]
    logits = create_logits(12, 300, 2)
    together = draw(logits.clone(), to_parameters(rows))
    alone = [draw(logits[i : i + 1].clone(), to_parameters(rows[i : i + 1])) for i in range(12)]
    assert together.tolist() == [token_id.item() for token_id in alone]


def test_draws_are_fixed_for_all_time() -> None:
    """A change here changes the answer to every seeded request."""
    rows = [(1.0, 0, 1.0, 0.0, 7, 0), (0.7, 40, 0.95, 0.0, -3, 5), (1.5, 0, 0.9, 0.02, 2**40, 99)]
    logits = ((torch.arange(3000) * 7919) % 1009).div(100).repeat(3, 1).to(DEVICE)
    assert draw(logits, to_parameters(rows)).tolist() == [647, 2328, 1334]


def test_rows_are_selected_with_all_they_have() -> None:
    rows = [(0.1, 1, 0.2, 0.3, 4, 5), (1.1, 11, 0.9, 0.8, 14, 15)]
    parameters = to_parameters(rows)
    selected = parameters.select(torch.tensor([1], device=DEVICE))
    for part in fields(DrawParameters):
        if part.name != "has_filters":
            expected = getattr(parameters, part.name)[1:]
            assert torch.equal(getattr(selected, part.name), expected)
