"""What stands behind a decoder's layers: a matrix of its own, or the embedding's.

Read next: `gpu_pool.layers.vocabulary`.
"""

from gpu_pool.layers.vocabulary import Embedding, VocabularyHead
from gpu_pool.models.decoder_config import DecoderConfig
from gpu_pool.models.parameters import ReadParameter
from gpu_pool.parallel.tensor_group import TensorGroup


def create_head(
    config: DecoderConfig, read: ReadParameter, embedding: Embedding | None, group: TensorGroup
) -> VocabularyHead | None:
    """The head, on the last stage; a tied one reads the embedding's memory where that is here."""
    if not config.holds_last:
        return None
    if config.has_tied_embeddings and embedding is not None:
        return VocabularyHead(embedding.weight_VD, group)
    return VocabularyHead(read("head"), group)
