"""The gate of Gemma's feed-forward network: y = gelu(g) · u, with g and u side by side.

gelu is the approximation by tanh. Shapes: T tokens, F intermediate size. Takes bf16 or fp32; gelu
is rounded to the dtype before the product, as an unfused pair does it.
"""

from torch import Tensor

from gpu_pool.kernels.activations import gelu


def gelu_mul_reference(gate_up_T2F: Tensor) -> Tensor:
    """The gated values `[T, F]`, in plain torch."""
    gate_TF, up_TF = gate_up_T2F.chunk(2, dim=-1)
    return gelu(gate_TF).mul_(up_TF)


def gelu_mul(gate_up_T2F: Tensor) -> Tensor:
    """The gated values `[T, F]` of a fused gate-and-up projection."""
    assert gate_up_T2F.shape[-1] % 2 == 0, "gate_up_T2F does not split into halves"
    return gelu_mul_reference(gate_up_T2F)
