"""What is read from an encoder's `config.json`, and what is refused."""

import json
from typing import Any

import pytest

from gpu_pool.models.bert.config import describe
from gpu_pool.models.errors import CheckpointError

CONFIG: dict[str, Any] = {
    "architectures": ["XLMRobertaForSequenceClassification"],
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 514,
    "type_vocab_size": 1,
    "pad_token_id": 1,
    "id2label": {"0": "LABEL_0"},
}


def encode(**changes: Any) -> bytes:
    """The content of a changed file."""
    return json.dumps(CONFIG | changes).encode()


def test_positions_before_the_first_are_not_part_of_the_context() -> None:
    network = describe(encode())
    assert (network.context_window, network.num_labels, network.num_types) == (512, 1, 1)
    assert describe(encode(architectures=["BertModel"])).context_window == 514


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hidden_act": "silu"}, "silu"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"is_decoder": True}, "is_decoder"),
        ({"num_attention_heads": 5}, "multiple"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"pad_token_id": 600}, "pad_token_id"),
        ({"id2label": {}}, "num_labels"),
    ],
)
def test_what_would_compute_something_else_is_refused_by_name(
    changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(CheckpointError, match=reason):
        describe(encode(**changes))
