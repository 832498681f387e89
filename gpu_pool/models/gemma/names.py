"""Which checkpoint tensors make up the parameters of a Gemma, by Hugging Face's names."""

from typing import Final

from gpu_pool.models import decoder_names as names
from gpu_pool.models.gemma.layer import GemmaConfig
from gpu_pool.models.gemma.sharding import SPLITS
from gpu_pool.models.parameters import CheckpointTensor, ParameterSource

_NORMS: Final = {
    "input_norm": "input_layernorm",
    "output_norm": "post_attention_layernorm",
    "mlp_input_norm": "pre_feedforward_layernorm",
    "mlp_output_norm": "post_feedforward_layernorm",
}


def list_parameters(config: GemmaConfig, prefix: str) -> dict[str, ParameterSource]:
    """Every parameter by the name that the model asks for."""
    norms: names.Parts = {
        name: (CheckpointTensor(f"{tensor}.weight", (config.hidden_size,)),)
        for name, tensor in _NORMS.items()
    }
    mlp = names.list_gated_mlp(config.hidden_size, config.intermediate_size)
    layer = norms | names.list_attention(config) | mlp
    layers = [names.place_in_layer(i, layer, prefix) for i in range(config.num_layers)]
    parts = [names.list_embeddings(config, prefix), *layers]
    return names.join_parts(parts, SPLITS, names.PRODUCTS)
