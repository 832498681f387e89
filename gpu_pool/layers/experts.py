"""A feed-forward network of experts, of which a router chooses a few for each token.

Tokens are sorted by expert and each expert computes its own in one go; then every token's results
are added in the order of its choice, whoever else was in the step. On a GPU all experts of a layer
are one tensor per product and compute side by side in one launch, without a word from the host.
Shapes: T tokens, D hidden size, F intermediate size, E held experts, C chosen experts of a token.
Read next: `gpu_pool.kernels.expert_order`, `gpu_pool.kernels.grouped_linear`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from gpu_pool.kernels.clamped_swiglu import clamped_swiglu
from gpu_pool.kernels.expert_order import HeldExperts, order_by_expert
from gpu_pool.kernels.expert_sum import expert_sum
from gpu_pool.kernels.fp8_blocks import BlockScaledWeight
from gpu_pool.kernels.grouped_linear import (
    ClampedGate,
    ExpertProduct,
    choose_block_rows,
    gather_gated,
    scatter_product,
)
from gpu_pool.kernels.int4_groups import Int4Weights
from gpu_pool.kernels.silu_mul import silu_mul
from gpu_pool.kernels.triton_language import uses_triton
from gpu_pool.layers.gated_mlp import GatedMlp
from gpu_pool.layers.linear import Linear
from gpu_pool.layers.routing import Router

FeedForward = Callable[[Tensor], Tensor]
MixExperts = Callable[[Tensor, Tensor, Tensor], Tensor]
"""The sum `[T, D]` of what experts make of states `[T, D]`, by their ids and weights `[T, C]`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertForm:
    """What experts are beside their weights."""

    held: HeldExperts
    gate: ClampedGate | None = None
    """None: silu · mul."""
    weighs_inputs: bool = False
    """Weights scale what experts are given, instead of what they make of it."""


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """The products of all experts that are held; rows of a gate stand before those of up."""

    gate_up_E2FD: Tensor | BlockScaledWeight | Int4Weights
    down_EDF: Tensor | BlockScaledWeight | Int4Weights
    gate_up_bias_E2F: Tensor | None = None
    down_bias_ED: Tensor | None = None


class ExpertNetwork:
    """Routed experts, and what every token passes through beside them, if anything does."""

    __slots__ = ("_gate", "_mix", "_router", "_shared")

    def __init__(
        self, gate: Linear, router: Router, mix: MixExperts, shared: FeedForward | None = None
    ) -> None:
        """Joins the parts; `gate` gives the router's logits and computes in fp32."""
        self._gate = gate
        self._router = router
        self._mix = mix
        self._shared = shared

    def __call__(self, x_TD: Tensor) -> Tensor:
        """The network's output `[T, D]`."""
        chosen_TC, weights_TC = self._router(self._gate(x_TD.float()))
        mixed_TD = self._mix(x_TD, chosen_TC, weights_TC)
        return mixed_TD if self._shared is None else mixed_TD + self._shared(x_TD)


def create_experts(weights: ExpertWeights, form: ExpertForm) -> MixExperts:
    """The experts in the form that their device computes fastest."""
    gate_up = weights.gate_up_E2FD
    probe = gate_up.numbers if isinstance(gate_up, Int4Weights) else gate_up
    if uses_triton(probe.weight if isinstance(probe, BlockScaledWeight) else probe):
        return StackedExperts(weights, form)
    experts = list_experts(weights, form)
    return partial(run_experts, experts=experts, weighs_inputs=form.weighs_inputs)


def list_experts(weights: ExpertWeights, form: ExpertForm) -> list[FeedForward | None]:
    """All experts of the layer one by one, packed; those of other ranks are None."""
    gate = silu_mul
    if form.gate is not None:
        gate = partial(clamped_swiglu, alpha=form.gate.alpha, limit=form.gate.limit)
    experts: list[FeedForward | None] = [None] * form.held.total
    for i in range(form.held.count):
        experts[form.held.first + i] = GatedMlp(
            Linear(weights.gate_up_E2FD[i], _pick(weights.gate_up_bias_E2F, i)),
            Linear(weights.down_EDF[i], _pick(weights.down_bias_ED, i)),
            gate,
        )
    return experts


def _pick(biases: Tensor | None, expert: int) -> Tensor | None:
    """An expert's own, if there are any."""
    return None if biases is None else biases[expert]


class StackedExperts:
    """Experts whose products are one launch each. Nothing is read back from the device."""

    __slots__ = ("_down", "_form", "_gate_up")

    def __init__(self, weights: ExpertWeights, form: ExpertForm) -> None:
        """Takes the weights as they are; none is copied. Those of four bits are for CPUs."""
        gate_up, down = weights.gate_up_E2FD, weights.down_EDF
        assert not isinstance(gate_up, Int4Weights)
        assert not isinstance(down, Int4Weights)
        self._gate_up = ExpertProduct(gate_up, weights.gate_up_bias_E2F, form.gate)
        self._down = ExpertProduct(down, weights.down_bias_ED)
        self._form = form

    def __call__(self, x_TD: Tensor, chosen_TC: Tensor, weights_TC: Tensor) -> Tensor:
        """The sum `[T, D]`."""
        held, num_chosen = self._form.held, chosen_TC.shape[1]
        before = weights_TC if self._form.weighs_inputs else None
        behind = None if self._form.weighs_inputs else weights_TC
        order = order_by_expert(chosen_TC, held, choose_block_rows(chosen_TC.numel(), held))
        inner_NF = gather_gated(x_TD, self._gate_up, order, before, num_chosen)
        each_ND = scatter_product(inner_NF, self._down, order)
        return expert_sum(each_ND.view(*chosen_TC.shape, -1), chosen_TC, behind, held)


def run_experts(
    x_TD: Tensor,
    chosen_TC: Tensor,
    weights_TC: Tensor,
    experts: Sequence[FeedForward | None],
    *,
    weighs_inputs: bool = False,
) -> Tensor:
    """The sum `[T, D]` of what each token's experts make of it, weighted before or behind them.

    Experts that are None are another rank's: here they make nothing of their tokens.
    """
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


def turn_experts(inputs_first_EKM: Tensor) -> Tensor:
    """Products of experts `[E, outputs, inputs]` where a checkpoint has inputs as rows."""
    return inputs_first_EKM.transpose(1, 2)


def separate_gates(rows_E2F: Tensor) -> Tensor:
    """Rows of gate and up that take turns, as those of the gate, then those of up."""
    return rows_E2F.unflatten(1, (-1, 2)).transpose(1, 2).flatten(1, 2)
