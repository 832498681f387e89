"""A weight matrix with its bias, in the form that the device multiplies fastest."""

from torch import Tensor

from gpu_pool.kernels.fp8_blocks import BlockScaledWeight
from gpu_pool.kernels.linear import Weight, linear, pack_weight


class Linear:
    """y = x · Wᵀ + b. The weight is packed at construction; the tensor handed in may be dropped."""

    __slots__ = ("bias", "weight")

    def __init__(self, weight_MK: Tensor | BlockScaledWeight, bias_M: Tensor | None = None) -> None:
        """Takes weight and bias as checkpoints hold them."""
        self.weight: Weight = pack_weight(weight_MK)
        self.bias = bias_M

    def __call__(self, x_TK: Tensor) -> Tensor:
        """The product `[T, M]`."""
        return linear(x_TK, self.weight, self.bias)
