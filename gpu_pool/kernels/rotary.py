"""Rotary position embedding, in place: each head's halves (a, b) become (a·c − b·s, b·c + a·s).

Halves are paired as Hugging Face pairs them. The caller's sine table carries the sign, −s for the
first half and s for the second, so that a roll by half a head replaces negate and concatenate.
Shapes: T tokens, N heads, H head dim. Takes bf16 or fp32. Source: Su et al. 2021.
"""

import torch
from torch import Tensor


def rotary_reference(x_TNH: Tensor, cos_TH: Tensor, signed_sin_TH: Tensor) -> None:
    """Turns `x_TNH`, which may be a part of a larger tensor, in plain torch."""
    cos_T1H, sin_T1H = cos_TH[:, None], signed_sin_TH[:, None]
    swapped_TNH = x_TNH.roll(x_TNH.shape[-1] // 2, -1)
    torch.addcmul(x_TNH * cos_T1H, swapped_TNH, sin_T1H, out=x_TNH)


def rotary(x_TNH: Tensor, cos_TH: Tensor, signed_sin_TH: Tensor) -> None:
    """Turns every head of `x_TNH` by its token's position, in place."""
    num_tokens, _, head_dim = x_TNH.shape
    assert cos_TH.shape == (num_tokens, head_dim), "cos_TH does not fit x_TNH"
    assert signed_sin_TH.shape == (num_tokens, head_dim), "signed_sin_TH does not fit x_TNH"
    rotary_reference(x_TNH, cos_TH, signed_sin_TH)
