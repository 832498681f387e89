"""Which checkpoint tensors make up the parameters of a Llama, by Hugging Face's names.

Must not know how they are read (`gpu_pool.weights`) or what they are for (`model`).
"""

from gpu_pool.models.decoder_config import DecoderConfig
from gpu_pool.models.decoder_names import list_decoder
from gpu_pool.models.llama.sharding import SPLITS
from gpu_pool.models.parameters import ParameterSource


def list_parameters(config: DecoderConfig) -> dict[str, ParameterSource]:
    """Every parameter by the name that the model asks for."""
    return list_decoder(config, SPLITS)
