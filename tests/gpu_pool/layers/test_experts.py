"""Experts: each token gets the weighted sum of its own, whoever else is there."""

from functools import partial

import pytest
import torch
from torch import Tensor

from gpu_pool.kernels.expert_order import HeldExperts
from gpu_pool.kernels.grouped_linear import ClampedGate
from gpu_pool.layers.experts import (
    ExpertForm,
    ExpertNetwork,
    ExpertWeights,
    StackedExperts,
    list_experts,
    run_experts,
    separate_gates,
    turn_experts,
)
from gpu_pool.layers.linear import Linear
from gpu_pool.layers.routing import (
    GroupLimit,
    route_among_highest,
    route_by_own_sigmoid,
    route_by_sigmoid,
    route_by_softmax,
    route_in_groups,
)
from tests.gpu_pool.kernels.triton_cases import DEVICE, needs_triton


def create_experts(num_experts: int, size: int) -> tuple[Tensor, list[Linear]]:
    """Matrices, and networks that multiply with them."""
    weights = torch.randn(num_experts, size, size)
    return weights, [Linear(weight) for weight in weights]


def test_each_token_gets_the_weighted_sum_of_its_experts() -> None:
    torch.manual_seed(0)
    weights, experts = create_experts(5, 8)
    x, chosen = torch.randn(7, 8), torch.stack([torch.randperm(5)[:2] for _ in range(7)])
    shares = torch.rand(7, 2)
    mixed = run_experts(x, chosen, shares, experts)
    for token in range(7):
        parts = [weights[expert] @ x[token] for expert in chosen[token]]
        expected = parts[0] * shares[token, 0] + parts[1] * shares[token, 1]
        assert (mixed[token] - expected).abs().max() < 1e-4


def test_a_token_does_not_depend_on_its_neighbours() -> None:
    torch.manual_seed(0)
    _, experts = create_experts(4, 64)
    x, logits = torch.randn(33, 64), torch.randn(33, 4)
    chosen, shares = route_by_softmax(logits, 2, is_normalised=True)
    whole = run_experts(x, chosen, shares, experts)
    for part in (slice(0, 1), slice(5, 9), slice(2, 33)):
        alone = run_experts(x[part], chosen[part], shares[part], experts)
        assert torch.equal(alone, whole[part])


def test_experts_without_tokens_do_not_compute() -> None:
    def fail(_: Tensor) -> Tensor:
        raise AssertionError("nobody chose it")

    x = torch.ones(2, 4)
    chosen = torch.tensor([[2], [0]])
    mixed = run_experts(x, chosen, torch.ones(2, 1), [lambda y: y * 2, fail, lambda y: y * 3])
    assert mixed[:, 0].tolist() == [3, 2]


def test_what_is_shared_is_added_for_every_token() -> None:
    gate = Linear(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    network = ExpertNetwork(
        gate,
        lambda logits: route_by_softmax(logits, 1, is_normalised=True),
        partial(run_experts, experts=[lambda y: y * 10, lambda y: y * 100]),
        shared=lambda y: y + 1,
    )
    found = network(torch.tensor([[2.0, 1.0], [1.0, 2.0]]))
    assert found.tolist() == [[23, 12], [102, 203]]


NUM_EXPERTS, NUM_CHOSEN, HIDDEN, INNER = 8, 3, 70, 40
ROUTERS = {
    "mixtral": partial(route_by_softmax, num_chosen=NUM_CHOSEN, is_normalised=True),
    "qwen": partial(route_by_softmax, num_chosen=NUM_CHOSEN, is_normalised=False),
    "gpt-oss": partial(route_among_highest, num_chosen=NUM_CHOSEN),
    "llama4": partial(route_by_own_sigmoid, num_chosen=1),
    "deepseek v2": partial(
        route_in_groups, num_chosen=NUM_CHOSEN, groups=GroupLimit(4, 2), scale=2.5
    ),
    "deepseek v3": partial(
        route_by_sigmoid,
        bias_E=torch.linspace(-0.1, 0.1, NUM_EXPERTS, device=DEVICE),
        num_chosen=NUM_CHOSEN,
        groups=GroupLimit(4, 2),
        scale=2.5,
        is_normalised=True,
    ),
}


@needs_triton
@pytest.mark.parametrize("held", [HeldExperts(0, 8, 8), HeldExperts(4, 4, 8)], ids=["all", "half"])
@pytest.mark.parametrize("router", ROUTERS)
def test_stacked_experts_are_those_one_by_one(router: str, held: HeldExperts) -> None:
    generator = torch.Generator().manual_seed(3)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(DEVICE)

    has_bias = router == "gpt-oss"
    weights = ExpertWeights(
        draw(held.count, 2 * INNER, HIDDEN) / HIDDEN**0.5,
        draw(held.count, HIDDEN, INNER) / INNER**0.5,
        draw(held.count, 2 * INNER) if has_bias else None,
        draw(held.count, HIDDEN) if has_bias else None,
    )
    form = ExpertForm(
        held=held,
        gate=ClampedGate(1.702, 1.5) if has_bias else None,
        weighs_inputs=router == "llama4",
    )
    x = draw(19, HIDDEN)
    chosen, shares = ROUTERS[router](draw(19, NUM_EXPERTS))
    expected = run_experts(
        x, chosen, shares, list_experts(weights, form), weighs_inputs=form.weighs_inputs
    )
    assert expected.abs().max() > 0.5  # else any output would pass
    actual = StackedExperts(weights, form)(x, chosen, shares)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
    wrong = StackedExperts(weights, form)(x, chosen.flip(0), shares)
    assert (wrong - expected).abs().max() > 0.1


def test_gates_that_take_turns_are_separated() -> None:
    rows = torch.arange(12).view(1, 6, 2)
    assert separate_gates(rows)[0, :, 0].tolist() == [0, 4, 8, 2, 6, 10]
    assert turn_experts(rows)[0, 1].tolist() == [1, 3, 5, 7, 9, 11]
