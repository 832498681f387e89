"""A `config.json` from strangers is described or refused with one sentence, and soon."""

import json
from typing import Any

import pytest

from gpu_pool.capacity.model_size import read_model_size
from gpu_pool.models.errors import CheckpointError

PLAIN: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
}
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, None),
        ({"quantization_config": FP8 | {"ignore": ["lm_head", "re:.*gate", "("]}}, None),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"quantization_config": FP8 | {"weight_block_size": [0, 128]}}, "weight_block_size"),
        ({"quantization_config": FP8 | {"ignore": ["re:("]}}, "is no pattern"),
        ({"quantization_config": FP8 | {"ignore": ["re:a{99999999999999999999}"]}}, "no pattern"),
        ({"quantization_config": FP8 | {"ignore": [f"re:{'(' * 5000}"]}}, "no pattern: maximum"),
    ],
)
def test_odd_numbers_and_patterns_are_refused(changes: dict[str, Any], said: str | None) -> None:
    content = json.dumps(PLAIN | changes).encode()
    if said is None:
        assert read_model_size(content).num_layers == 2
        return
    with pytest.raises(CheckpointError, match=said):
        read_model_size(content)


@pytest.mark.parametrize("name", [b"quantization_config", b"text_config", b"whatever"])
def test_nesting_without_end_is_refused(name: bytes) -> None:
    for depth, is_deep in ((10, False), (100_000, True)):
        nested = b"[" * depth + b"]" * depth
        if name == b"text_config":  # which is an object
            nested = b'{"whatever": ' + nested + b"}"
        content = json.dumps(PLAIN).encode()[:-1] + b', "' + name + b'": ' + nested + b"}"
        if is_deep:
            with pytest.raises(CheckpointError, match="recursion"):
                read_model_size(content)
        elif name != b"quantization_config":
            assert read_model_size(content).num_layers == 2
