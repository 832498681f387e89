"""The whole of a checkpoint counts before its text part, which speaks where the whole is silent."""

import json
from typing import Any

import pytest

from gpu_pool.models.errors import CheckpointError
from gpu_pool.weights.config_header import read_config_header

PACKED = {"quant_method": "fp8"}
BOTH_PACKED = {"quantization_config": {}, "text_config": {"quantization_config": PACKED}}


@pytest.mark.parametrize(
    ("config", "dtype", "eos", "packing"),
    [
        ({}, None, None, None),
        ({"dtype": "float32", "eos_token_id": 0}, "float32", 0, None),
        ({"torch_dtype": "float16", "eos_token_id": [1, 2]}, "float16", (1, 2), None),
        ({"text_config": {"torch_dtype": "bfloat16"}}, "bfloat16", None, None),
        ({"torch_dtype": "float16", "text_config": {"dtype": "float32"}}, "float16", None, None),
        ({"eos_token_id": 0, "text_config": {"eos_token_id": 5}}, None, 0, None),
        ({"dtype": None, "text_config": {"quantization_config": PACKED}}, None, None, PACKED),
        (BOTH_PACKED, None, None, {}),
    ],
)
def test_what_is_said_first_counts(
    config: dict[str, Any], dtype: str | None, eos: object, packing: object
) -> None:
    header = read_config_header(json.dumps(config).encode())
    assert (header.dtype, header.eos_token_id, header.quantization_config) == (dtype, eos, packing)


def test_architectures_of_both_are_told_apart() -> None:
    config = {"architectures": ["Whole"], "text_config": {"architectures": ["Text"]}}
    header = read_config_header(json.dumps(config).encode())
    assert (header.architectures, header.text_architectures) == (("Whole",), ("Text",))


@pytest.mark.parametrize("content", [b"", b"[]", b'{"dtype": 1}', b"\xff", b"[" * 100_000])
def test_what_is_malformed_is_named_with_the_file(content: bytes) -> None:
    with pytest.raises(CheckpointError, match=r"^folder/config\.json: "):
        read_config_header(content, "folder/config.json")
