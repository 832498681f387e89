"""Which checkpoint tensors make up the parameters of a gpt-oss, by Hugging Face's names."""

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
    own: names.Parts = {
        name: (CheckpointTensor(tensor, shape),) for name, (tensor, shape) in tensors.items()
    }
    layer = names.list_layer_norms(config) | names.list_attention(config) | own
    layers = [names.place_in_layer(i, layer) for i in range(config.num_layers)]
    return names.join_parts([names.list_embeddings(config), *layers], SPLITS)
