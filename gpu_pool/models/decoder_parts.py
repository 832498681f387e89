"""The parts of a decoder's layer, made of a family's configuration and parameters.

Read next: `grouped_decoder` and `decoder`, which join them to a network.
"""

from functools import partial

import torch

from gpu_pool.kernels.attention_form import PLAIN, AttentionForm
from gpu_pool.kernels.expert_order import HeldExperts
from gpu_pool.kernels.head_norm import HeadNorm
from gpu_pool.layers.experts import (
    ExpertForm,
    ExpertNetwork,
    ExpertWeights,
    FeedForward,
    MixExperts,
    create_experts,
)
from gpu_pool.layers.gated_mlp import GatedMlp
from gpu_pool.layers.grouped_attention import GroupedAttention, HeadSizes
from gpu_pool.layers.linear import Linear
from gpu_pool.layers.routing import route_by_softmax
from gpu_pool.models.decoder_config import DecoderConfig
from gpu_pool.models.decoder_layer import Attention, PreNormLayer
from gpu_pool.models.parameters import ReadParameter
from gpu_pool.models.products import read_product


def create_layer(
    layer: int, read: ReadParameter, attention: Attention, feed_forward: FeedForward
) -> PreNormLayer:
    """A layer of these two parts, its norms read."""
    prefix = f"layers.{layer}."
    return PreNormLayer(
        read(f"{prefix}input_norm"), attention, read(f"{prefix}post_norm"), feed_forward
    )


def read_linear(read: ReadParameter, name: str, has_bias: bool = False) -> Linear:
    """The product called `name`, with the bias called after it."""
    bias = read(f"{name}_bias") if has_bias else None
    return Linear(read_product(read, name), bias, name=name)


def create_attention(
    config: DecoderConfig, layer: int, read: ReadParameter, form: AttentionForm = PLAIN
) -> GroupedAttention:
    """The attention of one layer, by the configuration's switches."""
    prefix = f"layers.{layer}."
    norm = None
    if config.has_head_norm:
        q_H, k_H = read(f"{prefix}q_norm"), read(f"{prefix}k_norm")
        weights = [q_H] * config.num_heads + [k_H] * config.num_kv_heads
        norm = HeadNorm(torch.stack(weights), config.rms_norm_eps)
    return GroupedAttention(
        HeadSizes(config.num_heads, config.num_kv_heads, config.head_dim),
        config.place_layer(layer),
        qkv=read_linear(read, f"{prefix}qkv", config.has_qkv_bias),
        o=read_linear(read, f"{prefix}o", config.has_o_bias),
        norm=norm,
        form=form,
    )


def create_gated_mlp(config: DecoderConfig, layer: int, read: ReadParameter) -> GatedMlp:
    """The dense feed-forward network of one layer."""
    prefix = f"layers.{layer}."
    return GatedMlp(
        gate_up=read_linear(read, f"{prefix}gate_up", config.has_mlp_bias),
        down=read_linear(read, f"{prefix}down", config.has_mlp_bias),
    )


def create_expert_network(config: DecoderConfig, layer: int, read: ReadParameter) -> ExpertNetwork:
    """The experts of one layer, chosen by softmax."""
    experts = config.experts
    assert experts is not None, "the network has no experts"
    prefix = f"layers.{layer}."
    return ExpertNetwork(
        Linear(read(f"{prefix}router").float()),
        partial(
            route_by_softmax,
            num_chosen=experts.num_chosen,
            is_normalised=experts.is_normalised,
        ),
        read_experts(read, prefix, experts.num_experts),
    )


def read_experts(read: ReadParameter, prefix: str, num_experts: int) -> MixExperts:
    """Experts whose products are read one below the other; every rank has a part of each."""
    weights = ExpertWeights(
        read_product(read, f"{prefix}expert_gate_up").unflatten(0, (num_experts, -1)),
        read_product(read, f"{prefix}expert_down").unflatten(0, (num_experts, -1)),
    )
    return create_experts(weights, ExpertForm(held=HeldExperts(0, num_experts, num_experts)))


def create_feed_forward(config: DecoderConfig, layer: int, read: ReadParameter) -> FeedForward:
    """The network of one layer: experts where the configuration has them, else a dense one."""
    create = create_expert_network if config.has_experts(layer) else create_gated_mlp
    return create(config, layer, read)
