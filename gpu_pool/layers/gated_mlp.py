"""The SwiGLU feed-forward network: down(silu(gate(x)) · up(x)), gate and up in one product."""

from torch import Tensor

from gpu_pool.kernels.silu_mul import silu_mul
from gpu_pool.layers.linear import Linear


class GatedMlp:
    """`gate_up` holds the gate's rows first, then those of up."""

    __slots__ = ("_down", "_gate_up")

    def __init__(self, gate_up: Linear, down: Linear) -> None:
        """Joins the two products."""
        self._gate_up = gate_up
        self._down = down

    def __call__(self, x_TD: Tensor) -> Tensor:
        """The network's output `[T, D]`."""
        return self._down(silu_mul(self._gate_up(x_TD)))
