"""gpt-oss: attention with a sink per head, windows in every other layer, experts everywhere.

Checkpoints hold experts with inputs as rows and with gate and up interleaved; both are put right
here. Shapes: E experts, D hidden size, F intermediate size.
Read next: `gpu_pool.models.decoder` (what differs from it), then `names`.
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from gpu_pool.kernels.attention_form import AttentionForm
from gpu_pool.kernels.clamped_swiglu import clamped_swiglu
from gpu_pool.layers.experts import ExpertNetwork, place_experts
from gpu_pool.layers.gated_mlp import GatedMlp
from gpu_pool.layers.linear import Linear
from gpu_pool.layers.rotary_embedding import create_rotary_embedding
from gpu_pool.layers.routing import route_among_highest
from gpu_pool.models.decoder import PreNormDecoder, create_layer
from gpu_pool.models.decoder_config import DecoderConfig
from gpu_pool.models.decoder_parts import create_attention
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
    gate = partial(clamped_swiglu, alpha=config.gate_alpha, limit=config.gate_limit)
    gate_ups_EDF2, gate_up_biases_EF2 = (
        read(f"{prefix}expert_gate_up"),
        read(f"{prefix}expert_gate_up_bias"),
    )
    downs_EFD, down_biases_ED = read(f"{prefix}expert_down"), read(f"{prefix}expert_down_bias")
    experts = [
        GatedMlp(
            Linear(_separate(gate_ups_EDF2[i].T), _separate(gate_up_biases_EF2[i])),
            Linear(downs_EFD[i].T.contiguous(), down_biases_ED[i]),
            gate,
        )
        for i in range(len(gate_ups_EDF2))
    ]
    router = Linear(read(f"{prefix}router").float(), read(f"{prefix}router_bias").float())
    return ExpertNetwork(
        router,
        partial(route_among_highest, num_chosen=config.experts.num_chosen),
        place_experts(experts, config.experts.num_experts, group.rank),
    )


def _separate(rows: Tensor) -> Tensor:
    """Interleaved rows of gate and up as those of the gate, then those of up."""
    return torch.cat((rows[0::2], rows[1::2]))
