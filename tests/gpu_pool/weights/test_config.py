"""`config.json`: what is read and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from gpu_pool.layers.rotary_embedding import Llama3Scaling
from gpu_pool.weights.config import read_config
from gpu_pool.weights.errors import CheckpointError

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
}
SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def write(folder: Path, without: str | None = None, **changes: Any) -> Path:
    """A folder with a changed `config.json`."""
    config = {name: value for name, value in (CONFIG | changes).items() if name != without}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_sizes_are_read_and_defaults_filled_in(tmp_path: Path) -> None:
    checked = read_config(write(tmp_path))
    llama = checked.llama
    assert (llama.num_layers, llama.num_heads, llama.num_kv_heads, llama.head_dim) == (3, 4, 2, 16)
    assert llama.context_window == 1024
    assert llama.rope_theta == 10_000.0
    assert llama.rope_scaling is None
    assert not llama.has_tied_embeddings
    assert checked.dtype == torch.float32
    assert checked.eos_token_ids == ()


def test_without_kv_heads_each_head_has_its_own(tmp_path: Path) -> None:
    assert read_config(write(tmp_path, without="num_key_value_heads")).llama.num_kv_heads == 4


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_parameters": SCALING | {"rope_theta": 5e5}},
        {"rope_scaling": SCALING, "rope_theta": 5e5},
    ],
)
def test_both_spellings_of_rope_settings_are_read(tmp_path: Path, rope: dict[str, Any]) -> None:
    llama = read_config(write(tmp_path, **rope)).llama
    assert llama.rope_theta == 5e5
    assert llama.rope_scaling == Llama3Scaling(8.0, 1.0, 4.0, 64)


@pytest.mark.parametrize("name", ["dtype", "torch_dtype"])
def test_both_spellings_of_the_dtype_are_read(tmp_path: Path, name: str) -> None:
    assert read_config(write(tmp_path, **{name: "bfloat16"})).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [(2, None, (2,)), ([2, 3], None, (2, 3)), (2, [5, 6], (5, 6)), (None, 7, (7,))],
)
def test_the_generation_config_decides_what_ends_a_sequence(
    tmp_path: Path, config: object, generation: object, expected: tuple[int, ...]
) -> None:
    write(tmp_path, eos_token_id=config)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": generation}))
    assert read_config(tmp_path).eos_token_ids == expected


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
        ({"architectures": []}, "not supported"),
        ({"auto_map": {"AutoModelForCausalLM": "evil.Model"}}, "auto_map"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"sliding_window": 4096}, "sliding_window"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, "linear"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "low_freq_factor"),
        ({"rope_scaling": SCALING | {"factor": 0.5}}, "out of range"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"rope_theta": -1.0}, "rope_theta"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"num_hidden_layers": -1}, "num_hidden_layers"),
        ({"num_key_value_heads": 3}, "multiple"),
        ({"head_dim": 15}, "even"),
        ({"vocab_size": "many"}, "vocab_size"),
        ({"dtype": "float8_e4m3fn"}, "float8_e4m3fn"),
        ({"eos_token_id": 300}, "eos_token_id"),
        ({"eos_token_id": [-1]}, "eos_token_id"),
    ],
)
def test_what_would_compute_something_else_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(CheckpointError, match=reason):
        read_config(write(tmp_path, **changes))


def test_a_missing_field_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="hidden_size"):
        read_config(write(tmp_path, without="hidden_size"))


def test_a_missing_or_malformed_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json does not exist"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_bytes(b'{"a": \xff}')
    with pytest.raises(CheckpointError, match=r"config\.json"):
        read_config(tmp_path)
