"""Which experts compute a token, and how much each counts: one function per kind of router.

Shapes: T tokens, E experts, C chosen experts of a token, G groups of experts. Logits and weights
are fp32 whatever the states are, so that rounding does not choose.
Source: Mixtral, Qwen3, gpt-oss, DeepSeek-V2 and V3.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_pool.kernels.activations import sigmoid

Routing = tuple[Tensor, Tensor]
"""Ids `[T, C]` of the chosen experts and their weights."""
Router = Callable[[Tensor], Routing]
"""From logits `[T, E]`."""


def route_by_softmax(logits_TE: Tensor, num_chosen: int, *, is_normalised: bool) -> Routing:
    """The likeliest experts with their probabilities, among all or (normalised) the chosen ones."""
    weights_TC, chosen_TC = logits_TE.softmax(-1).topk(num_chosen, -1)
    if is_normalised:
        weights_TC = weights_TC / weights_TC.sum(-1, keepdim=True)
    return chosen_TC, weights_TC


def route_among_highest(logits_TE: Tensor, num_chosen: int) -> Routing:
    """The experts with the highest logits, with their probabilities among themselves."""
    highest_TC, chosen_TC = logits_TE.topk(num_chosen, -1)
    return chosen_TC, highest_TC.softmax(-1)


@dataclass(frozen=True, slots=True)
class GroupLimit:
    """Experts divide evenly into groups, of which a token may use a few."""

    num_groups: int
    num_chosen: int

    def hide_others(self, scores_TE: Tensor, num_counted: int, hidden: float) -> Tensor:
        """`scores_TE` with those outside the best groups replaced.

        A group is as good as its `num_counted` best experts together.
        """
        scores_TGX = scores_TE.view(scores_TE.shape[0], self.num_groups, -1)
        merits_TG = scores_TGX.topk(num_counted, -1).values.sum(-1)
        chosen_TG = merits_TG.topk(self.num_chosen, -1).indices
        is_hidden_TG = torch.ones_like(merits_TG, dtype=torch.bool).scatter_(1, chosen_TG, False)
        return scores_TGX.masked_fill(is_hidden_TG[..., None], hidden).view(scores_TE.shape)


def route_in_groups(
    logits_TE: Tensor, num_chosen: int, groups: GroupLimit | None, scale: float
) -> Routing:
    """The likeliest experts of the groups with the likeliest one; weights are scaled."""
    scores_TE = logits_TE.softmax(-1)
    if groups is not None:
        scores_TE = groups.hide_others(scores_TE, 1, 0.0)
    weights_TC, chosen_TC = scores_TE.topk(num_chosen, -1)
    return chosen_TC, weights_TC * scale


def route_by_sigmoid(
    logits_TE: Tensor,
    bias_E: Tensor,
    num_chosen: int,
    groups: GroupLimit | None,
    *,
    scale: float,
    is_normalised: bool,
) -> Routing:
    """The experts best by sigmoid and bias, in groups whose two best are; the bias only chooses."""
    scores_TE = sigmoid(logits_TE)
    merits_TE = scores_TE + bias_E
    if groups is not None:
        merits_TE = groups.hide_others(merits_TE, 2, float("-inf"))
    chosen_TC = merits_TE.topk(num_chosen, -1).indices
    weights_TC = scores_TE.gather(1, chosen_TC)
    if is_normalised:
        weights_TC = weights_TC / (weights_TC.sum(-1, keepdim=True) + 1e-20)
    return chosen_TC, weights_TC * scale


def route_by_own_sigmoid(logits_TE: Tensor, num_chosen: int) -> Routing:
    """The experts with the highest logits, each weighed by its own sigmoid."""
    highest_TC, chosen_TC = logits_TE.topk(num_chosen, -1)
    return chosen_TC, sigmoid(highest_TC)
