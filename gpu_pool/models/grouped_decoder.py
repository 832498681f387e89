"""A decoder with grouped-query attention in every layer, made of a configuration: most families.

Read next: `decoder`, `decoder_parts`.
"""

from gpu_pool.layers.rotary_embedding import create_rotary_embedding
from gpu_pool.models.decoder import PreNormDecoder
from gpu_pool.models.decoder_config import DecoderConfig
from gpu_pool.models.decoder_parts import create_attention, create_feed_forward, create_layer
from gpu_pool.models.parameters import ReadParameter
from gpu_pool.parallel.tensor_group import TensorGroup


def create_decoder(
    config: DecoderConfig, read: ReadParameter, context_window: int, group: TensorGroup
) -> PreNormDecoder:
    """The decoder; all parameters are read and packed."""
    layers = [
        create_layer(
            layer,
            read,
            create_attention(config, layer, read),
            create_feed_forward(config, layer, read),
        )
        for layer in config.held_layers
    ]
    rotary = create_rotary_embedding(
        config.rotary, config.head_dim, context_window, layers[0].input_norm_D
    )
    return PreNormDecoder(config, read, layers, [rotary], group)
