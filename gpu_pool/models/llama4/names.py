"""Which checkpoint tensors make up the parameters of a Llama 4, by Hugging Face's names.

Where the text model is a part of one that sees, all its names begin with `language_model.`.
"""

from gpu_pool.layers.experts import turn_experts
from gpu_pool.models import decoder_names as names
from gpu_pool.models.decoder_config import ExpertSizes
from gpu_pool.models.llama4.attention import Llama4Config
from gpu_pool.models.llama4.sharding import SPLITS
from gpu_pool.models.parameters import CheckpointTensor, ParameterSource


def list_parameters(config: Llama4Config, outer: str) -> dict[str, ParameterSource]:
    """Every parameter by the name that the model asks for."""
    hidden = config.hidden_size
    shared = names.list_layer_norms(config) | names.list_attention(config)
    dense = names.list_gated_mlp(hidden, config.intermediate_size, "feed_forward.")
    sparse = _list_experts(hidden, config.experts) if config.experts is not None else {}
    layers = [
        names.place_in_layer(
            i, shared | (sparse if config.has_experts(i) else dense), f"{outer}model."
        )
        for i in range(config.num_layers)
    ]
    embeddings = names.list_embeddings(config, f"{outer}model.", f"{outer}lm_head.weight")
    return names.join_parts([embeddings, *layers], SPLITS)


def _list_experts(hidden_size: int, experts: ExpertSizes) -> names.Parts:
    """Routed experts, which have inputs as rows, and what every token passes through."""
    count, inner = experts.num_experts, experts.intermediate_size
    shared = names.list_gated_mlp(hidden_size, inner, "feed_forward.shared_expert.")
    tensors = {
        "expert_gate_up": ("gate_up_proj", (count, hidden_size, 2 * inner)),
        "expert_down": ("down_proj", (count, inner, hidden_size)),
    }
    found: names.Parts = {
        name: (CheckpointTensor(f"feed_forward.experts.{tensor}", shape, arrange=turn_experts),)
        for name, (tensor, shape) in tensors.items()
    }
    router = CheckpointTensor("feed_forward.router.weight", (count, hidden_size))
    found["router"] = (router,)
    return found | {f"shared_{name}": tensors for name, tensors in shared.items()}
