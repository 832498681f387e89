"""A feed-forward network of experts, of which a router chooses a few for each token.

Tokens are sorted by expert and each expert computes its own in one go; then every token's results
are added in the order of its choice, whoever else was in the step.
Shapes: T tokens, D hidden size, E experts, C chosen experts of a token.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gpu_pool.layers.linear import Linear
from gpu_pool.layers.routing import Router

FeedForward = Callable[[Tensor], Tensor]


class ExpertNetwork:
    """Routed experts, and what every token passes through beside them, if anything does."""

    __slots__ = ("_experts", "_gate", "_router", "_shared", "_weighs_inputs")

    def __init__(
        self,
        gate: Linear,
        router: Router,
        experts: Sequence[FeedForward | None],
        shared: FeedForward | None = None,
        *,
        weighs_inputs: bool = False,
    ) -> None:
        """Joins the parts; `gate` gives the router's logits and computes in fp32.

        Experts that are None are another rank's: here they make nothing of their tokens.
        Weights scale what experts make of a token, or with `weighs_inputs` what they are given.
        """
        self._gate = gate
        self._router = router
        self._experts = experts
        self._shared = shared
        self._weighs_inputs = weighs_inputs

    def __call__(self, x_TD: Tensor) -> Tensor:
        """The network's output `[T, D]`."""
        chosen_TC, weights_TC = self._router(self._gate(x_TD.float()))
        mixed_TD = run_experts(
            x_TD, chosen_TC, weights_TC, self._experts, weighs_inputs=self._weighs_inputs
        )
        return mixed_TD if self._shared is None else mixed_TD + self._shared(x_TD)


def run_experts(
    x_TD: Tensor,
    chosen_TC: Tensor,
    weights_TC: Tensor,
    experts: Sequence[FeedForward | None],
    *,
    weighs_inputs: bool = False,
) -> Tensor:
    """The sum `[T, D]` of what each token's experts make of it, weighted before or behind them."""
    num_chosen = chosen_TC.shape[1]
    experts_of_rows = chosen_TC.flatten()
    order = experts_of_rows.argsort(stable=True)
    counts: list[int] = torch.bincount(experts_of_rows, minlength=len(experts)).tolist()
    rows = x_TD.index_select(0, order // num_chosen)
    if weighs_inputs:
        rows = (rows * weights_TC.flatten()[order, None]).to(x_TD.dtype)
    results = torch.empty_like(rows)
    first = 0
    for expert, count in zip(experts, counts, strict=True):
        if count:
            end = first + count
            results[first:end] = 0 if expert is None else expert(rows[first:end])
            first = end
    unsorted = torch.empty_like(results).index_copy_(0, order, results)
    each_TCD = unsorted.view(*chosen_TC.shape, -1).float()
    if not weighs_inputs:
        each_TCD = each_TCD * weights_TC[..., None]
    return each_TCD.sum(1).to(x_TD.dtype)


def place_experts(
    own: Sequence[FeedForward], num_experts: int, rank: int
) -> list[FeedForward | None]:
    """All experts of a layer where each rank has `own` neighbours; None for those of others."""
    first = rank * len(own)
    return [
        own[expert - first] if first <= expert < first + len(own) else None
        for expert in range(num_experts)
    ]
