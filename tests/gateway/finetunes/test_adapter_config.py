"""Configurations as PEFT writes them: read, or refused by the field that cannot be computed."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import InvalidRequest
from contracts.finetunes import AdapterConfig
from gateway.finetunes.adapter_config import read_adapter_config
from tests.gateway.finetunes.adapter_files import CONFIG, format_config

MAX_RANK = 64


def test_a_configuration_of_peft_is_read() -> None:
    config = read_adapter_config(format_config(), MAX_RANK)
    assert config == AdapterConfig(rank=8, alpha=16.0)
    assert config.scale == 2.0


def test_a_scale_by_the_root_is_honoured() -> None:
    config = read_adapter_config(format_config(use_rslora=True, r=16), MAX_RANK)
    assert config.scale == 16 / math.sqrt(16)


@pytest.mark.parametrize("field", ["model_type", "task_type", "bias", "use_dora", "use_rslora"])
def test_a_field_that_says_nothing_may_be_missing_or_null(field: str) -> None:
    missing = {name: value for name, value in CONFIG.items() if name != field}
    for data in (json.dumps(missing).encode(), format_config(**{field: None})):
        assert read_adapter_config(data, MAX_RANK).rank == 8


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("peft_type", "LOHA"),
        ("peft_type", "lora"),
        ("task_type", "SEQ_CLS"),
        ("bias", "all"),
        ("bias", "lora_only"),
        ("modules_to_save", ["lm_head"]),
        ("use_dora", True),
        ("rank_pattern", {"q_proj": 4}),
        ("alpha_pattern", {"q_proj": 4}),
        ("fan_in_fan_out", True),
        ("megatron_config", {"a": 1}),
        ("layer_replication", [[0, 4], [2, 5]]),
        ("lora_bias", True),
        ("trainable_token_indices", [1]),
        ("target_parameters", ["a"]),
        ("use_qalora", True),
        ("use_bdlora", {"a": 1}),
        ("alora_invocation_tokens", [1]),
        ("arrow_config", {"a": 1}),
        ("init_lora_weights", "pissa_niter_16"),
        ("init_lora_weights", "LoftQ"),
        ("r", 0),
        ("r", -1),
        ("r", 65),
        ("r", 8.5),
        ("r", "8"),
        ("r", None),
        ("lora_alpha", None),
        ("lora_alpha", 1e300),
        ("lora_alpha", "16"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_its_field(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_adapter_config(format_config(**{field: value}), MAX_RANK)
    assert caught.value.param == field
    assert f"`{field}`" in caught.value.message
    if field in CONFIG:  # the control
        assert read_adapter_config(format_config(**{field: CONFIG[field]}), MAX_RANK).rank == 8


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff",
        b'{"peft_type": "LORA", "r": 8, "lora_alpha": NaN}',
        b'{"peft_type": "LORA", "r": 8, "lora_alpha": Infinity}',
        b'{"peft_type": "LORA", "r": 8, "lora_alpha": 1e999}',
        b'{"peft_type": "LORA", "r": 8, "r": 4, "lora_alpha": 1}',
        b'{"x":' * 10_000,
    ],
)
def test_what_is_no_such_object_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest):
        read_adapter_config(data, MAX_RANK)


@given(st.integers(1, MAX_RANK), st.floats(-1e5, 1e5), st.booleans())
def test_every_scale_is_one_that_nodes_take(rank: int, alpha: float, by_root: bool) -> None:
    data = format_config(r=rank, lora_alpha=alpha, use_rslora=by_root)
    config = read_adapter_config(data, MAX_RANK)
    assert abs(config.scale) <= 1e6
    assert config.scale == pytest.approx(alpha / (math.sqrt(rank) if by_root else rank))
