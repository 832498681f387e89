"""Experts: each token gets the weighted sum of its own, whoever else is there."""

import torch
from torch import Tensor

from gpu_pool.layers.experts import ExpertNetwork, run_experts
from gpu_pool.layers.linear import Linear
from gpu_pool.layers.routing import route_by_softmax


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
        [lambda y: y * 10, lambda y: y * 100],
        shared=lambda y: y + 1,
    )
    found = network(torch.tensor([[2.0, 1.0], [1.0, 2.0]]))
    assert found.tolist() == [[23, 12], [102, 203]]
