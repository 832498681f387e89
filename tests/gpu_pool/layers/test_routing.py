"""Routers by their definitions."""

import pytest
import torch

from gpu_pool.layers.routing import (
    GroupLimit,
    route_among_highest,
    route_by_sigmoid,
    route_by_softmax,
    route_in_groups,
)


@pytest.mark.parametrize("is_normalised", [True, False])
def test_the_likeliest_experts_are_chosen_with_their_probabilities(is_normalised: bool) -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0, -1.0]])
    chosen, weights = route_by_softmax(logits, 2, is_normalised=is_normalised)
    assert chosen.tolist() == [[1, 2]]
    among = logits[0, [1, 2]] if is_normalised else logits[0]
    expected = torch.tensor([2.0, 1.0]).exp() / among.exp().sum()
    assert (weights[0] - expected).abs().max() < 1e-6


def test_the_highest_experts_share_among_themselves() -> None:
    chosen, weights = route_among_highest(torch.tensor([[0.0, 2.0, 1.0, -1.0]]), 2)
    assert chosen.tolist() == [[1, 2]]
    assert (weights[0] - torch.tensor([2.0, 1.0]).softmax(-1)).abs().max() < 1e-6


def test_only_experts_of_the_best_groups_are_chosen() -> None:
    logits = torch.tensor([[3.0, -9.0, 2.0, 1.9, 1.8, 1.7]])  # groups (3, -9), (2, 1.9), (1.8, 1.7)
    chosen, weights = route_in_groups(logits, 2, GroupLimit(3, 1), scale=2.0)
    assert chosen.tolist() == [
        [0, 1]
    ]  # the group with the likeliest expert, whatever else is in it
    assert (weights[0] - 2 * logits.softmax(-1)[0, :2]).abs().max() < 1e-6
    chosen, _ = route_in_groups(logits, 2, None, scale=1.0)
    assert chosen.tolist() == [[0, 2]]


def test_the_bias_chooses_but_does_not_weigh() -> None:
    logits = torch.tensor([[0.0, 0.5, 1.0, -1.0]])
    bias = torch.tensor([0.0, 0.0, -1.0, 1.0])
    chosen, weights = route_by_sigmoid(logits, bias, 2, None, scale=3.0, is_normalised=True)
    assert sorted(chosen[0].tolist()) == [1, 3]
    scores = logits[0, chosen[0]].sigmoid()
    assert (weights[0] - 3 * scores / scores.sum()).abs().max() < 1e-6


def test_groups_are_as_good_as_their_two_best() -> None:
    logits = torch.tensor([[4.0, -4.0, 1.0, 1.0]])
    chosen, _ = route_by_sigmoid(
        logits, torch.zeros(4), 2, GroupLimit(2, 1), scale=1.0, is_normalised=False
    )
    assert sorted(chosen[0].tolist()) == [2, 3]
