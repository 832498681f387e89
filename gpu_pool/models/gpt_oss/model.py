"""gpt-oss: attention with a sink per head, windows in every other layer, experts everywhere.

Shapes: E experts, D hidden size, F intermediate size.
Read next: `gpu_pool.models.decoder` (what differs from it), then `names`.
"""

from dataclasses import dataclass
from functools import partial

from gpu_pool.kernels.attention_form import AttentionForm
from gpu_pool.kernels.expert_order import hold_neighbours
from gpu_pool.kernels.grouped_linear import ClampedGate
from gpu_pool.layers.experts import ExpertForm, ExpertNetwork, ExpertWeights, create_experts
from gpu_pool.layers.linear import Linear
from gpu_pool.layers.rotary_embedding import create_rotary_embedding
from gpu_pool.layers.routing import route_among_highest
from gpu_pool.models.decoder import PreNormDecoder
from gpu_pool.models.decoder_config import DecoderConfig
from gpu_pool.models.decoder_parts import create_attention, create_layer
from gpu_pool.models.parameters import ReadParameter
from gpu_pool.parallel.tensor_group import TensorGroup


@dataclass(frozen=True, kw_only=True)
class GptOssConfig(DecoderConfig):
    """What gpt-oss adds to a decoder's configuration."""

    gate_alpha: float
    gate_limit: float


def create_model(
    config: GptOssConfig, read: ReadParameter, context_window: int, group: TensorGroup
) -> PreNormDecoder:
    """The network with all its parameters, for contexts of at most so many tokens."""
    layers = [
        create_layer(
            layer,
            read,
            create_attention(
                config,
                layer,
                read,
                AttentionForm(sinks_N=read(f"layers.{layer}.sinks").float()),
            ),
            _create_experts(config, layer, read, group),
        )
        for layer in config.held_layers
    ]
    rotary = create_rotary_embedding(
        config.rotary, config.head_dim, context_window, layers[0].input_norm_D
    )
    return PreNormDecoder(config, read, layers, [rotary], group)


def _create_experts(
    config: GptOssConfig, layer: int, read: ReadParameter, group: TensorGroup
) -> ExpertNetwork:
    """The experts of one layer; a rank has some of them."""
    assert config.experts is not None, "gpt-oss has experts"
    prefix = f"layers.{layer}."
    weights = ExpertWeights(
        read(f"{prefix}expert_gate_up"),
        read(f"{prefix}expert_down"),
        read(f"{prefix}expert_gate_up_bias"),
        read(f"{prefix}expert_down_bias"),
    )
    form = ExpertForm(
        held=hold_neighbours(weights.down_EDF.shape[0], config.experts.num_experts, group.rank),
        gate=ClampedGate(config.gate_alpha, config.gate_limit),
    )
    router = Linear(read(f"{prefix}router").float(), read(f"{prefix}router_bias").float())
    return ExpertNetwork(
        router,
        partial(route_among_highest, num_chosen=config.experts.num_chosen),
        create_experts(weights, form),
    )
