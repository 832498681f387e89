"""What a family does differently in attention, and the one place that computes it in torch.

    scores = softcap(q · Kᵀ · scale) + mask,   weights = softmax over scores and the head's sink

Plain scores go to torch's fused kernel. A sink is one more score per head whose value is nothing,
so it only scales the result down: by sigmoid(lse − sink), with lse the log of the summed exponents.
Soft-capped scores, and sinks off the CPU, are computed in the open, in fp32.
Shapes: B batch, K KV heads, M query rows of a KV head, L keys, H head dim; masks broadcast.
Takes bf16 or fp32, fp32 accumulation. Source: Gemma 2 (softcap), gpt-oss (sinks), DeepSeek-V2
(values as a part of the keys).
"""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from gpu_pool.kernels.activations import sigmoid


@dataclass(frozen=True, slots=True)
class AttentionForm:
    """How scores are made and where values lie."""

    scale: float | None = None
    """None is 1 / √H."""
    softcap: float | None = None
    """c · tanh(score / c); None leaves scores as they are."""
    sinks_N: Tensor | None = None
    """A score per query head that takes weight and gives nothing, fp32."""
    value_dim: int | None = None
    """Values are so many leading elements of the keys; None: they lie beside them, as long."""


PLAIN: Final = AttentionForm()


def split_kv(
    rows: Tensor, batch_size: int, num_kv_heads: int, head_dim: int, form: AttentionForm
) -> tuple[Tensor, Tensor]:
    """Keys and values `[B, L, K, H]` of gathered rows `[B · C, E]`.

    Values inside the keys come with the keys' other elements, which `trim_values` takes off the
    result: the fused kernel wants both of one length.
    """
    if form.value_dim is not None:
        k_BLKH = rows.view(batch_size, -1, num_kv_heads, head_dim)
        return k_BLKH, k_BLKH
    kv_BL2KH = rows.view(batch_size, -1, 2, num_kv_heads, head_dim)
    return kv_BL2KH[:, :, 0], kv_BL2KH[:, :, 1]


def trim_values(mixed: Tensor, form: AttentionForm) -> Tensor:
    """The leading elements of the mixed keys that are values."""
    return mixed if form.value_dim is None else mixed[..., : form.value_dim]


def mix_values(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, form: AttentionForm, sinks: Tensor | None
) -> Tensor:
    """softmax(scores) · V, shaped as `q`: `[…, M, H]` over keys `[…, L, H]`.

    `mask` and `sinks` (`[…, M or 1]`) broadcast over the leading dimensions.
    """
    if sinks is None and form.softcap is None:
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=form.scale)
    if sinks is None or form.softcap is not None or q.device.type != "cpu":
        return _mix_in_the_open(q, k, v, mask, form, sinks)
    mixed, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, False, attn_mask=mask, scale=form.scale
    )
    return (mixed * sigmoid(lse - sinks)[..., None]).to(q.dtype)


def _mix_in_the_open(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, form: AttentionForm, sinks: Tensor | None
) -> Tensor:
    """`mix_values` step by step."""
    scale = form.scale or q.shape[-1] ** -0.5
    scores = (q @ k.transpose(-1, -2)).float() * scale
    if form.softcap is not None:
        scores = torch.tanh(scores / form.softcap) * form.softcap
    scores = scores + mask
    if sinks is None:
        weights = scores.softmax(-1)
    else:
        column = sinks[..., None].expand(*scores.shape[:-1], 1)
        weights = torch.cat((scores, column), -1).softmax(-1)[..., :-1]
    return weights.to(v.dtype) @ v
