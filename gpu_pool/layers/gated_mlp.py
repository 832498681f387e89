"""A gated feed-forward network: down(act(gate(x)) · up(x)), gate and up in one product."""

from collections.abc import Callable

from torch import Tensor

from gpu_pool.kernels.silu_mul import silu_mul
from gpu_pool.layers.linear import Linear


class GatedMlp:
    """`gate_up` holds the gate's rows, then those of up; `gate` joins them."""

    __slots__ = ("down", "gate", "gate_up")

    def __init__(
        self, gate_up: Linear, down: Linear, gate: Callable[[Tensor], Tensor] = silu_mul
    ) -> None:
        """Joins the two products."""
        self.gate_up = gate_up
        self.down = down
        self.gate = gate

    def __call__(self, x_TD: Tensor) -> Tensor:
        """The network's output `[T, D]`."""
        return self.down(self.gate(self.gate_up(x_TD)))
