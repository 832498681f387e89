"""The `config.json` of a BERT, RoBERTa or XLM-RoBERTa."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec
from torch import Tensor
from torch.nn import functional

from gpu_pool.encoder_architectures import CLASSIFIER_ARCHITECTURES
from gpu_pool.models.bert.model import BertConfig, BertEncoder
from gpu_pool.models.bert.names import BertNaming, list_ignored, list_parameters
from gpu_pool.models.config_json import (
    NumLayers,
    decode_config,
    require_activation,
    require_positive,
)
from gpu_pool.models.errors import CheckpointError
from gpu_pool.models.network import EncoderNetwork

_MULTI_LABEL: Final = "multi_label_classification"
_ACTIVATIONS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "gelu": functional.gelu,
    "gelu_new": partial(functional.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
}


class _BertJson(msgspec.Struct, frozen=True):
    """The fields that matter; others are ignored."""

    architectures: tuple[str, ...]
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: NumLayers
    num_attention_heads: int
    max_position_embeddings: int
    layer_norm_eps: float = 1e-12
    type_vocab_size: int = 2
    hidden_act: str = "gelu"
    pad_token_id: int | None = None
    position_embedding_type: str = "absolute"
    is_decoder: bool = False
    num_labels: int | None = None
    id2label: dict[str, Any] | None = None
    problem_type: str | None = None


def describe(content: bytes) -> EncoderNetwork:
    """The network. Raises: `CheckpointError` naming the field."""
    json = decode_config(content, _BertJson)
    _check(json)
    (architecture,) = json.architectures
    is_bert = architecture.startswith("Bert")
    # RoBERTa counts positions from behind the padding token's id on.
    first = 0 if is_bert else (1 if json.pad_token_id is None else json.pad_token_id) + 1
    if not 0 <= first < json.max_position_embeddings:
        raise CheckpointError(f"pad_token_id {json.pad_token_id} leaves no position.")
    config = BertConfig(
        vocab_size=json.vocab_size,
        num_positions=json.max_position_embeddings,
        first_position=first,
        num_types=json.type_vocab_size,
        hidden_size=json.hidden_size,
        intermediate_size=json.intermediate_size,
        num_layers=json.num_hidden_layers,
        num_heads=json.num_attention_heads,
        layer_norm_eps=json.layer_norm_eps,
        activation=_ACTIVATIONS[json.hidden_act],
        num_labels=_count_labels(json) if architecture in CLASSIFIER_ARCHITECTURES else 0,
    )
    naming = _find_naming(architecture)
    return EncoderNetwork(
        vocab_size=config.vocab_size,
        context_window=config.num_positions - first,
        hidden_size=config.hidden_size,
        num_types=config.num_types,
        num_labels=config.num_labels,
        is_multi_label=json.problem_type == _MULTI_LABEL,
        parameters=list_parameters(config, naming),
        ignored=list_ignored(naming),
        create=partial(BertEncoder, config),
    )


def _check(json: _BertJson) -> None:
    """Raises for what this family does not compute."""
    require_activation(json.hidden_act, *_ACTIVATIONS)
    if json.position_embedding_type != "absolute":
        raise CheckpointError("position_embedding_type is not supported; only absolute.")
    if json.is_decoder:
        raise CheckpointError("config.json has `is_decoder`; only encoders.")
    require_positive(
        {
            "vocab_size": json.vocab_size,
            "hidden_size": json.hidden_size,
            "intermediate_size": json.intermediate_size,
            "num_hidden_layers": json.num_hidden_layers,
            "num_attention_heads": json.num_attention_heads,
            "max_position_embeddings": json.max_position_embeddings,
            "type_vocab_size": json.type_vocab_size,
            "layer_norm_eps": json.layer_norm_eps,
        }
    )
    if json.hidden_size % json.num_attention_heads:
        raise CheckpointError("hidden_size is no multiple of num_attention_heads.")


def _count_labels(json: _BertJson) -> int:
    """How many labels the head has; two where nothing says so."""
    count = len(json.id2label) if json.id2label is not None else json.num_labels
    require_positive({"num_labels": 2 if count is None else count})
    return 2 if count is None else count


def _find_naming(architecture: str) -> BertNaming:
    """How an architecture calls its tensors."""
    is_bert = architecture.startswith("Bert")
    wrapped = "bert." if is_bert else "roberta."
    prefix = "" if architecture.endswith("Model") else wrapped
    if is_bert:
        return BertNaming(prefix, head=f"{prefix}pooler.dense", labels="classifier")
    return BertNaming(prefix, head="classifier.dense", labels="classifier.out_proj")
