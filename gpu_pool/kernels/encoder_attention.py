"""Attention of every token to every token of its own text: softmax(q · Kᵀ / √H) · V.

Texts lie one behind the other without padding; those of one length that are neighbours attend in
one call. So a text's result does not depend on the lengths of others.
Shapes: T tokens of all texts, N heads, H head dim. Takes bf16 or fp32, fp32 accumulation.
"""

from collections.abc import Sequence
from itertools import groupby

from torch import Tensor
from torch.nn import functional


def encoder_attention_reference(qkv_T3NH: Tensor, lengths: Sequence[int]) -> Tensor:
    """The mixed values `[T, N, H]`, in plain torch: one sdpa per run of equal lengths."""
    mixed_TNH = qkv_T3NH.new_empty(qkv_T3NH.shape[0], *qkv_T3NH.shape[2:])
    first = 0
    for length, run in groupby(lengths):
        end = first + length * sum(1 for _ in run)
        run_BL3NH = qkv_T3NH[first:end].view(-1, length, *qkv_T3NH.shape[1:])
        q, k, v = run_BL3NH.permute(2, 0, 3, 1, 4).unbind()
        mixed_BNLH = functional.scaled_dot_product_attention(q, k, v)
        mixed_TNH[first:end].view(-1, length, *mixed_TNH.shape[1:]).copy_(
            mixed_BNLH.transpose(1, 2)
        )
        first = end
    return mixed_TNH


def encoder_attention(qkv_T3NH: Tensor, lengths: Sequence[int]) -> Tensor:
    """The mixed values `[T, N, H]` of texts of `lengths` tokens."""
    assert qkv_T3NH.shape[1] == 3, "qkv_T3NH does not hold queries, keys and values"
    assert sum(lengths) == qkv_T3NH.shape[0], "lengths do not sum to T"
    return encoder_attention_reference(qkv_T3NH, lengths)
