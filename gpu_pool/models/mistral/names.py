"""Which checkpoint tensors make up a Mistral or Mixtral, by Hugging Face's names."""

from typing import Final

from gpu_pool.models.decoder_config import DecoderConfig
from gpu_pool.models.decoder_names import ExpertNaming, list_decoder
from gpu_pool.models.mistral.sharding import SPLITS
from gpu_pool.models.parameters import ParameterSource

_EXPERTS: Final = ExpertNaming(
    router="block_sparse_moe.gate.weight",
    experts="block_sparse_moe.experts.",
    gate="w1",
    up="w3",
    down="w2",
)


def list_parameters(config: DecoderConfig) -> dict[str, ParameterSource]:
    """Every parameter by the name that the model asks for."""
    return list_decoder(config, SPLITS, _EXPERTS)
