"""A weight matrix with its bias, in the form that the device multiplies fastest.

What a step adds to a product's rows is `added`: nothing, but in steps with adapters. Read next:
`gpu_pool.lora.row_additions`, which puts it there.
"""

from collections.abc import Callable

from torch import Tensor

from gpu_pool.kernels.fp8_blocks import BlockScaledWeight
from gpu_pool.kernels.int4_groups import Int4Weight
from gpu_pool.kernels.linear import Weight, linear, pack_weight

AddToRows = Callable[[Tensor, Tensor], None]
"""Adds to some rows of a product `[T, M]`, in place, what it makes of the inputs `[T, K]`."""
ArrangeRows = Callable[[Tensor], Tensor]
"""Brings the rows of a parameter, of any width, into the order that a layer computes with."""


class Linear:
    """y = x · Wᵀ + b. The weight is packed at construction; the tensor handed in may be dropped."""

    __slots__ = ("added", "arrange", "bias", "name", "weight")

    def __init__(
        self,
        weight_MK: Tensor | BlockScaledWeight | Int4Weight,
        bias_M: Tensor | None = None,
        *,
        name: str = "",
        arrange: ArrangeRows | None = None,
    ) -> None:
        """Takes weight and bias as checkpoints hold them, or as `arrange` has made them of that.

        `name` is the parameter's, by which adapters find the product; without one it takes none.
        """
        self.weight: Weight = pack_weight(weight_MK)
        self.bias = bias_M
        self.name = name
        self.arrange = arrange
        self.added: AddToRows | None = None

    def __call__(self, x_TK: Tensor) -> Tensor:
        """The product `[T, M]`."""
        y_TM = linear(x_TK, self.weight, self.bias)
        if self.added is not None:
            self.added(x_TK, y_TM)
        return y_TM
