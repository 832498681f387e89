"""What stands behind a decoder's layers: a matrix of its own, or the embedding's.

Read next: `gpu_pool.layers.vocabulary`.
"""

from torch import Tensor

from gpu_pool.layers.vocabulary import Embedding, VocabularyHead
from gpu_pool.models.decoder_config import DecoderConfig
from gpu_pool.models.parameters import ReadParameter
from gpu_pool.parallel.tensor_group import TensorGroup


def create_head(
    config: DecoderConfig, read: ReadParameter, embedding: Embedding | None, group: TensorGroup
) -> VocabularyHead | None:
    """The head, on the last stage; where it is tied, and the embedding is here, one memory is both:
    the embedding's, or the head's where that is packed so that rows can still be read.
    """
    if not config.holds_last:
        return None
    if not config.has_tied_embeddings or embedding is None:
        return VocabularyHead(read("head"), group)
    weight_VD = embedding.weight_VD
    assert isinstance(weight_VD, Tensor), "only here an embedding becomes a packed one"
    head = VocabularyHead(weight_VD, group)
    embedding.weight_VD = head.readable or weight_VD
    return head
