"""Which checkpoint tensors make up the parameters of a gpt-oss, by Hugging Face's names.

Checkpoints hold experts with inputs as rows, and with gate and up taking turns.
"""

from collections.abc import Callable

from torch import Tensor

from gpu_pool.layers.experts import separate_gates, turn_experts
from gpu_pool.models import decoder_names as names
from gpu_pool.models.gpt_oss.model import GptOssConfig
from gpu_pool.models.gpt_oss.sharding import SPLITS
from gpu_pool.models.parameters import CheckpointTensor, ParameterSource


def list_parameters(config: GptOssConfig) -> dict[str, ParameterSource]:
    """Every parameter by the name that the model asks for."""
    assert config.experts is not None, "gpt-oss has experts"
    count, inner, hidden = config.experts.num_experts, config.intermediate_size, config.hidden_size
    tensors = {
        "sinks": ("self_attn.sinks", (config.num_heads,)),
        "router": ("mlp.router.weight", (count, hidden)),
        "router_bias": ("mlp.router.bias", (count,)),
        "expert_gate_up": ("mlp.experts.gate_up_proj", (count, hidden, 2 * inner)),
        "expert_gate_up_bias": ("mlp.experts.gate_up_proj_bias", (count, 2 * inner)),
        "expert_down": ("mlp.experts.down_proj", (count, inner, hidden)),
        "expert_down_bias": ("mlp.experts.down_proj_bias", (count, hidden)),
    }
    arranged: dict[str, Callable[[Tensor], Tensor]] = {
        "expert_gate_up": _turn_and_separate,
        "expert_gate_up_bias": separate_gates,
        "expert_down": turn_experts,
    }
    own: names.Parts = {
        name: (CheckpointTensor(tensor, shape, arrange=arranged.get(name)),)
        for name, (tensor, shape) in tensors.items()
    }
    layer = names.list_layer_norms(config) | names.list_attention(config) | own
    layers = [names.place_in_layer(i, layer) for i in range(config.num_layers)]
    return names.join_parts([names.list_embeddings(config), *layers], SPLITS)


def _turn_and_separate(gate_ups_EDF2: Tensor) -> Tensor:
    """The products of gate and up in the order that experts compute with."""
    return separate_gates(turn_experts(gate_ups_EDF2))
