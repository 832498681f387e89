"""Which checkpoint tensors make up the parameters of a BERT, by Hugging Face's names.

What wraps the network puts a prefix before its names (`bert.`, `roberta.`), and RoBERTa's head for
labels is called otherwise than BERT's.
"""

from dataclasses import dataclass

from gpu_pool.models.bert.model import BertConfig
from gpu_pool.models.bert.sharding import SPLITS
from gpu_pool.models.decoder_names import Parts, join_parts
from gpu_pool.models.parameters import CheckpointTensor, ParameterSource


@dataclass(frozen=True, slots=True)
class BertNaming:
    """What differs between architectures."""

    prefix: str
    head: str
    """The layer between the first token's state and the labels."""
    labels: str


def list_parameters(config: BertConfig, naming: BertNaming) -> dict[str, ParameterSource]:
    """Every parameter by the name that the model asks for."""
    hidden = config.hidden_size
    parts: Parts = {
        name: (CheckpointTensor(f"{naming.prefix}embeddings.{table}.weight", (rows, hidden)),)
        for name, table, rows in (
            ("words", "word_embeddings", config.vocab_size),
            ("positions", "position_embeddings", config.num_positions),
            ("types", "token_type_embeddings", config.num_types),
        )
    }
    parts |= _list_norm("norm", f"{naming.prefix}embeddings.LayerNorm", hidden)
    for layer in range(config.num_layers):
        parts |= _list_layer(config, layer, f"{naming.prefix}encoder.layer.{layer}.")
    if config.num_labels:
        parts |= _list_linear("head", (naming.head,), hidden, hidden)
        parts |= _list_linear("labels", (naming.labels,), config.num_labels, hidden)
    return join_parts([parts], SPLITS)


def list_ignored(naming: BertNaming) -> frozenset[str]:
    """Tensors and, with a dot at the end, groups of them that the network does not need."""
    return frozenset(
        {f"{naming.prefix}embeddings.position_ids", f"{naming.prefix}pooler.", "cls.", "lm_head."}
    )


def _list_layer(config: BertConfig, layer: int, prefix: str) -> Parts:
    """The parameters of one layer."""
    hidden, inner = config.hidden_size, config.intermediate_size
    qkv = tuple(f"{prefix}attention.self.{name}" for name in ("query", "key", "value"))
    found = (
        _list_linear("qkv", qkv, hidden, hidden)
        | _list_linear("o", (f"{prefix}attention.output.dense",), hidden, hidden)
        | _list_norm("attention_norm", f"{prefix}attention.output.LayerNorm", hidden)
        | _list_linear("up", (f"{prefix}intermediate.dense",), inner, hidden)
        | _list_linear("down", (f"{prefix}output.dense",), hidden, inner)
        | _list_norm("output_norm", f"{prefix}output.LayerNorm", hidden)
    )
    return {f"layers.{layer}.{name}": tensors for name, tensors in found.items()}


def _list_linear(name: str, modules: tuple[str, ...], rows: int, columns: int) -> Parts:
    """A product of one or several modules of `rows` each, and its bias."""
    weights = tuple(CheckpointTensor(f"{module}.weight", (rows, columns)) for module in modules)
    biases = tuple(CheckpointTensor(f"{module}.bias", (rows,)) for module in modules)
    return {name: weights, f"{name}_bias": biases}


def _list_norm(name: str, module: str, size: int) -> Parts:
    """A layer norm's weight and bias."""
    return {
        name: (CheckpointTensor(f"{module}.weight", (size,)),),
        f"{name}_bias": (CheckpointTensor(f"{module}.bias", (size,)),),
    }
