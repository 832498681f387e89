"""Which checkpoint tensors make up the parameters of a Qwen, by Hugging Face's names."""

from typing import Final

from gpu_pool.models.decoder_config import DecoderConfig
from gpu_pool.models.decoder_names import ExpertNaming, list_decoder
from gpu_pool.models.parameters import ParameterSource
from gpu_pool.models.qwen.sharding import SPLITS

_EXPERTS: Final = ExpertNaming(
    router="mlp.gate.weight",
    experts="mlp.experts.",
    gate="gate_proj",
    up="up_proj",
    down="down_proj",
)


def list_parameters(config: DecoderConfig) -> dict[str, ParameterSource]:
    """Every parameter by the name that the model asks for."""
    return list_decoder(config, SPLITS, _EXPERTS)
