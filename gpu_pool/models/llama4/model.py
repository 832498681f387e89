"""Llama 4: layers that attend within chunks, and between them layers without positions.

Experts see states scaled by the router, beside a network that every token passes through.
Shapes: E experts, D hidden size, F inner size.
Read next: `attention`, then `gpu_pool.models.decoder`, then `names`.
"""

from functools import partial

from gpu_pool.kernels.expert_order import hold_neighbours
from gpu_pool.layers.experts import (
    ExpertForm,
    ExpertNetwork,
    ExpertWeights,
    FeedForward,
    create_experts,
)
from gpu_pool.layers.gated_mlp import GatedMlp
from gpu_pool.layers.linear import Linear
from gpu_pool.layers.rotary_embedding import create_rotary_embedding
from gpu_pool.layers.routing import route_by_own_sigmoid
from gpu_pool.models.decoder import PreNormDecoder
from gpu_pool.models.decoder_parts import create_gated_mlp, create_layer, read_linear
from gpu_pool.models.llama4.attention import Llama4Attention, Llama4Config
from gpu_pool.models.parameters import ReadParameter
from gpu_pool.parallel.tensor_group import TensorGroup


def create_model(
    config: Llama4Config, read: ReadParameter, context_window: int, group: TensorGroup
) -> PreNormDecoder:
    """The network with all its parameters, for contexts of at most so many tokens."""
    layers = [
        create_layer(
            layer,
            read,
            Llama4Attention(config, layer, read),
            _create_feed_forward(config, layer, read, group),
        )
        for layer in config.held_layers
    ]
    turning = create_rotary_embedding(
        config.rotary, config.head_dim, context_window, layers[0].input_norm_D
    )
    return PreNormDecoder(config, read, layers, [turning], group)


def _create_feed_forward(
    config: Llama4Config, layer: int, read: ReadParameter, group: TensorGroup
) -> FeedForward:
    """A dense network or experts, of which a rank has some."""
    if not config.has_experts(layer):
        return create_gated_mlp(config, layer, read)
    assert config.experts is not None, "checked above"
    prefix = f"layers.{layer}."
    weights = ExpertWeights(read(f"{prefix}expert_gate_up"), read(f"{prefix}expert_down"))
    form = ExpertForm(
        held=hold_neighbours(weights.down_EDF.shape[0], config.experts.num_experts, group.rank),
        weighs_inputs=True,
    )
    shared = GatedMlp(
        read_linear(read, f"{prefix}shared_gate_up"), read_linear(read, f"{prefix}shared_down")
    )
    return ExpertNetwork(
        Linear(read(f"{prefix}router").float()),
        partial(route_by_own_sigmoid, num_chosen=config.experts.num_chosen),
        create_experts(weights, form),
        shared,
    )
