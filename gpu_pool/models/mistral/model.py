"""Mistral: a Llama that may look back no further than a window; Mixtral: one of experts.

Read next: `gpu_pool.models.decoder`, then `config`.
"""

from gpu_pool.models.decoder import PreNormDecoder
from gpu_pool.models.decoder_config import DecoderConfig
from gpu_pool.models.grouped_decoder import create_decoder
from gpu_pool.models.parameters import ReadParameter
from gpu_pool.parallel.tensor_group import TensorGroup


def create_model(
    config: DecoderConfig, read: ReadParameter, context_window: int, group: TensorGroup
) -> PreNormDecoder:
    """The network with all its parameters, for contexts of at most so many tokens."""
    return create_decoder(config, read, context_window, group)
