"""Attention whose keys and values are one short latent vector per token (MLA), over paged memory.

The products from latent to keys and values are taken into queries and results instead, so that what
is kept per token is the latent and one turned part, for all heads together: scores are q_nope · W_K
against the latent plus turned queries against the turned part, results are mixed latents · W_V.
Shapes: T tokens, D hidden size, N query heads, P head dim without positions, O turned head dim,
V value dim, L latent size, E = L + O. Source: DeepSeek-V2.
"""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from gpu_pool.attention.paged import attend
from gpu_pool.kernels.attention_form import AttentionForm
from gpu_pool.kernels.rms_norm import rms_norm
from gpu_pool.kernels.rotary import rotary
from gpu_pool.layers.decoder_step import DecoderStep, LayerPlace
from gpu_pool.layers.linear import Linear

_LEAST_ROWS: Final = 4


@dataclass(frozen=True, slots=True)
class LatentSizes:
    """How heads and latents divide."""

    num_heads: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    latent_size: int


@dataclass(frozen=True, slots=True)
class LowRankQueries:
    """Queries by way of a short vector of their own."""

    down: Linear
    norm_R: Tensor
    up: Linear
    eps: float

    def __call__(self, x_TD: Tensor) -> Tensor:
        """The queries of all heads, side by side."""
        return self.up(rms_norm(self.down(x_TD), self.norm_R, self.eps))


@dataclass(frozen=True, slots=True)
class LatentWeights:
    """What makes and reads latents."""

    down: Linear
    """To the latent and the turned part of the keys."""
    norm_L: Tensor
    eps: float
    up_NHL: Tensor
    """From the latent to each head's keys (`P` rows), then its values (`V` rows)."""


class LatentAttention:
    """Mixes a token's states with those of the tokens before it."""

    __slots__ = ("_form", "_k_NPL", "_latents", "_o", "_place", "_queries", "_sizes", "_v_NLV")

    def __init__(
        self,
        sizes: LatentSizes,
        place: LayerPlace,
        queries: Linear | LowRankQueries,
        latents: LatentWeights,
        o: Linear,
        scale: float,
    ) -> None:
        """Joins the parts."""
        self._sizes = sizes
        self._place = place
        self._queries = queries
        self._latents = latents
        self._o = o
        self._form = AttentionForm(scale=scale, value_dim=sizes.latent_size)
        self._k_NPL = latents.up_NHL[:, : sizes.nope_dim].contiguous()
        self._v_NLV = latents.up_NHL[:, sizes.nope_dim :].transpose(1, 2).contiguous()

    def __call__(self, x_TD: Tensor, step: DecoderStep) -> Tensor:
        """The mixed states `[T, D]`."""
        sizes, place, num_tokens = self._sizes, self._place, x_TD.shape[0]
        assert place.rotation is not None, "latent attention knows positions"
        rotation = step.rotations[place.rotation]
        q_TNH = self._queries(x_TD).view(num_tokens, sizes.num_heads, -1)
        turned_TNO = q_TNH[..., sizes.nope_dim :]
        rotary(turned_TNO, *rotation)
        q_NTL = _multiply_heads(q_TNH[..., : sizes.nope_dim].transpose(0, 1), self._k_NPL)
        q_TNE = torch.cat((q_NTL.transpose(0, 1), turned_TNO), -1)
        kv_TE = self._make_latents(x_TD, rotation)
        mixed_TNL = attend(place.index, q_TNE, kv_TE, step.groups[place.group], self._form)
        values_NTV = _multiply_heads(mixed_TNL.transpose(0, 1), self._v_NLV)
        return self._o(values_NTV.transpose(0, 1).reshape(num_tokens, -1))

    def _make_latents(self, x_TD: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        """What is kept of each token: the normed latent and the turned part."""
        latents, size = self._latents, self._sizes.latent_size
        kv_TE = latents.down(x_TD)
        kv_TE[:, :size] = rms_norm(kv_TE[:, :size].contiguous(), latents.norm_L, latents.eps)
        rotary(kv_TE[:, None, size:], *rotation)
        return kv_TE


def _multiply_heads(x_NTK: Tensor, weight_NKM: Tensor) -> Tensor:
    """The products `[N, T, M]` of every head's rows with its weight.

    A CPU's libraries add in another order for the fewest rows, so there are never fewer.
    """
    num_rows = x_NTK.shape[1]
    if x_NTK.device.type != "cpu" or num_rows >= _LEAST_ROWS:
        return torch.bmm(x_NTK, weight_NKM)
    filled = functional.pad(x_NTK, (0, 0, 0, _LEAST_ROWS - num_rows))
    return torch.bmm(filled, weight_NKM)[:, :num_rows]
