"""The gate of gpt-oss's experts: y = (u + 1) · g · sigmoid(α · g), with g and u clamped first.

g and u lie side by side; g is at most the limit, u between its negative and it.
Shapes: T tokens, F intermediate size. Takes bf16 or fp32.
"""

from torch import Tensor

from gpu_pool.kernels.activations import sigmoid


def clamped_swiglu_reference(gate_up_T2F: Tensor, alpha: float, limit: float) -> Tensor:
    """The gated values `[T, F]`, in plain torch."""
    gate_TF, up_TF = gate_up_T2F.chunk(2, dim=-1)
    gate_TF, up_TF = gate_TF.clamp(max=limit), up_TF.clamp(-limit, limit)
    return sigmoid(gate_TF * alpha).mul_(gate_TF).mul_(up_TF + 1)


def clamped_swiglu(gate_up_T2F: Tensor, alpha: float, limit: float) -> Tensor:
    """The gated values `[T, F]` of a fused gate-and-up projection."""
    assert gate_up_T2F.shape[-1] % 2 == 0, "gate_up_T2F does not split into halves"
    return clamped_swiglu_reference(gate_up_T2F, alpha, limit)
