"""DeepSeek: latent attention, and experts beside a network that every token passes through.

Read next: `gpu_pool.layers.latent_attention`, then `gpu_pool.models.decoder`, then `names`.
"""

from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from gpu_pool.layers.experts import ExpertNetwork, FeedForward
from gpu_pool.layers.gated_mlp import GatedMlp
from gpu_pool.layers.latent_attention import (
    LatentAttention,
    LatentSizes,
    LatentWeights,
    LowRankQueries,
)
from gpu_pool.layers.linear import ArrangeRows, Linear
from gpu_pool.layers.rotary_embedding import create_rotary_embedding, to_halves
from gpu_pool.layers.routing import GroupLimit, Router, route_by_sigmoid, route_in_groups
from gpu_pool.models.decoder import PreNormDecoder
from gpu_pool.models.decoder_config import DecoderConfig, ExpertSizes
from gpu_pool.models.decoder_parts import create_gated_mlp, create_layer, read_experts, read_linear
from gpu_pool.models.network import KvLayers
from gpu_pool.models.parameters import ReadParameter
from gpu_pool.parallel.tensor_group import TensorGroup

_LATENT_EPS = 1e-6
"""Of the norms inside attention, whatever the configuration says of the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepseekRouting:
    """How experts are chosen. `scale` multiplies the weights of the chosen ones."""

    is_sigmoid: bool
    """V3's way, with a bias that only the choice sees; else V2's, by softmax."""
    groups: GroupLimit | None
    scale: float


@dataclass(frozen=True, kw_only=True)
class DeepseekConfig(DecoderConfig):
    """What DeepSeek adds to a decoder's configuration."""

    query_rank: int | None
    """None: queries are made in one product."""
    latents: LatentSizes
    attention_scale: float
    has_neighbouring_pairs: bool
    """Rotary pairs are neighbours in the checkpoint."""
    num_shared_experts: int
    routing: DeepseekRouting

    @cached_property
    def kv_groups(self) -> tuple[KvLayers, ...]:
        """One group of latents with their turned part."""
        size = self.latents.latent_size + self.latents.rope_dim
        return (KvLayers(len(self.held_layers), 1, size, self.reaches[0], num_parts=1),)


def create_model(
    config: DeepseekConfig, read: ReadParameter, context_window: int, group: TensorGroup
) -> PreNormDecoder:
    """The network with all its parameters, for contexts of at most so many tokens."""
    layers = [
        create_layer(
            layer,
            read,
            _create_attention(config, layer, read),
            _create_feed_forward(config, layer, read),
        )
        for layer in config.held_layers
    ]
    rotary = create_rotary_embedding(
        config.rotary, config.latents.rope_dim, context_window, layers[0].input_norm_D
    )
    return PreNormDecoder(config, read, layers, [rotary], group)


def _create_attention(config: DeepseekConfig, layer: int, read: ReadParameter) -> LatentAttention:
    """The attention of one layer."""
    prefix, sizes, has_bias = f"layers.{layer}.", config.latents, config.has_qkv_bias

    def read_turned(name: str, num_kept: int, *, has_bias: bool = False) -> Linear:
        arrange: ArrangeRows | None = None
        if config.has_neighbouring_pairs:
            arrange = partial(_turn_ends, num_kept=num_kept, num_turned=sizes.rope_dim)
        weight = read(f"{prefix}{name}")
        bias = read(f"{prefix}{name}_bias") if has_bias else None
        if arrange is not None:
            weight, bias = arrange(weight), None if bias is None else arrange(bias)
        return Linear(weight, bias, name=f"{prefix}{name}", arrange=arrange)

    if config.query_rank is None:
        queries: Linear | LowRankQueries = read_turned("q", sizes.nope_dim)
    else:
        queries = LowRankQueries(
            read_linear(read, f"{prefix}q_down", has_bias),
            read(f"{prefix}q_norm"),
            read_turned("q_up", sizes.nope_dim),
            _LATENT_EPS,
        )
    down = read_turned("kv_down", sizes.latent_size, has_bias=has_bias)
    up_NHL = read(f"{prefix}kv_up").view(sizes.num_heads, -1, sizes.latent_size)
    return LatentAttention(
        sizes,
        config.place_layer(layer),
        queries,
        LatentWeights(down, read(f"{prefix}kv_norm"), _LATENT_EPS, up_NHL),
        read_linear(read, f"{prefix}o", has_bias),
        config.attention_scale,
    )


def _turn_ends(rows: Tensor, num_kept: int, num_turned: int) -> Tensor:
    """Rows of heads, of which each keeps its first and has the pairs of the others as halves."""
    heads = rows.view(-1, num_kept + num_turned, *rows.shape[1:])
    turned = [to_halves(head[num_kept:], num_turned) for head in heads]
    return torch.cat((heads[:, :num_kept], torch.stack(turned)), 1).view(rows.shape)


def _create_feed_forward(config: DeepseekConfig, layer: int, read: ReadParameter) -> FeedForward:
    """A dense network in the first layers, experts in the others."""
    if not config.has_experts(layer):
        return create_gated_mlp(config, layer, read)
    assert config.experts is not None, "checked above"
    prefix = f"layers.{layer}."
    shared = None
    if config.num_shared_experts:
        shared = GatedMlp(
            read_linear(read, f"{prefix}shared_gate_up"), read_linear(read, f"{prefix}shared_down")
        )
    return ExpertNetwork(
        Linear(read(f"{prefix}router").float()),
        _create_router(config.routing, config.experts, prefix, read),
        read_experts(read, prefix, config.experts.num_experts),
        shared,
    )


def _create_router(
    routing: DeepseekRouting, experts: ExpertSizes, prefix: str, read: ReadParameter
) -> Router:
    """What chooses the experts of one layer."""
    if not routing.is_sigmoid:
        return lambda logits_TE: route_in_groups(
            logits_TE, experts.num_chosen, routing.groups, routing.scale
        )
    bias_E = read(f"{prefix}router_bias").float()
    return lambda logits_TE: route_by_sigmoid(
        logits_TE,
        bias_E,
        experts.num_chosen,
        routing.groups,
        scale=routing.scale,
        is_normalised=experts.is_normalised,
    )
