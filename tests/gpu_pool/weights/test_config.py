"""`config.json`: what is read and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from gpu_pool.layers.rotary_embedding import Llama3Scaling, RotaryForm
from gpu_pool.models.config_json import DecoderJson, decode_config, read_rotary
from gpu_pool.models.errors import CheckpointError
from gpu_pool.models.network import CausalNetwork
from gpu_pool.models.registry import FAMILIES
from gpu_pool.weights.config import read_config

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


def read_family(folder: Path) -> tuple[str, CausalNetwork]:
    """The name of the family and its network."""
    checked = read_config(folder)
    assert isinstance(checked.network, CausalNetwork)
    return checked.family.name, checked.network


def test_sizes_are_read_and_defaults_filled_in(tmp_path: Path) -> None:
    name, network = read_family(write(tmp_path))
    (group,) = network.kv_groups
    assert name == "Llama"
    assert (group.num_layers, group.num_kv_heads, group.head_dim) == (3, 2, 16)
    assert (network.vocab_size, network.context_window) == (300, 1024)
    assert "lm_head.weight" in {
        part.name for source in network.parameters.values() for part in source.parts
    }
    checked = read_config(tmp_path)
    assert checked.dtype == torch.float32
    assert checked.eos_token_ids == ()


def test_without_kv_heads_each_head_has_its_own(tmp_path: Path) -> None:
    _, network = read_family(write(tmp_path, without="num_key_value_heads"))
    assert network.kv_groups[0].num_kv_heads == 4


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_parameters": SCALING | {"rope_theta": 5e5}},
        {"rope_scaling": SCALING, "rope_theta": 5e5},
    ],
)
def test_both_spellings_of_rope_settings_are_read(tmp_path: Path, rope: dict[str, Any]) -> None:
    content = write(tmp_path, **rope).joinpath("config.json").read_bytes()
    form = read_rotary(decode_config(content, DecoderJson))
    assert form == RotaryForm(5e5, Llama3Scaling(8.0, 1.0, 4.0, 64))


def test_what_is_supported_is_said_of_an_unknown_architecture(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        read_config(write(tmp_path, architectures=["GPT2LMHeadModel"]))
    for family in FAMILIES:
        assert family.name in str(caught.value)
        assert all(name in str(caught.value) for name in family.architectures)


def test_no_architecture_belongs_to_two_families() -> None:
    names = [name for family in FAMILIES for name in family.architectures]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", ["dtype", "torch_dtype"])
def test_both_spellings_of_the_dtype_are_read(tmp_path: Path, name: str) -> None:
    assert read_config(write(tmp_path, **{name: "bfloat16"})).dtype == torch.bfloat16


def test_code_that_a_checkpoint_names_is_not_looked_for(tmp_path: Path) -> None:
    plain = read_config(write(tmp_path))
    (tmp_path / "evil.py").write_text("raise SystemExit")
    named = read_config(write(tmp_path, auto_map={"AutoModelForCausalLM": "evil.Model"}))
    assert named.family == plain.family


def test_what_the_whole_does_not_say_its_text_part_does(tmp_path: Path) -> None:
    text = {"torch_dtype": "bfloat16", "eos_token_id": 5}
    found = read_config(write(tmp_path, text_config=text))
    assert (found.dtype, found.eos_token_ids) == (torch.bfloat16, (5,))
    found = read_config(write(tmp_path, text_config=text, dtype="float16", eos_token_id=6))
    assert (found.dtype, found.eos_token_ids) == (torch.float16, (6,))


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
        # Code in checkpoints computes nothing here.
        (
            {"auto_map": {"AutoModel": "evil.Model"}, "architectures": ["EvilForCausalLM"]},
            "Architecture `EvilForCausalLM` is not supported",
        ),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"sliding_window": 4096}, "sliding_window"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}, "dynamic"),
        ({"rope_scaling": {"type": "linear", "factor": 0.5}}, "linear"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0, "beta_fast": 0.5}}, "yarn"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "low_freq_factor"),
        ({"rope_scaling": SCALING | {"factor": 0.5}}, "out of range"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_theta": -1.0}, "rope_theta"),
        ({"rope_theta": 0}, "rope_theta"),
        ({"rope_parameters": {"rope_theta": 0}, "rope_theta": 1e4}, "rope_theta"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0}, "rope_theta": 1.0}, "above 1"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0, "mscale": -1.0}}, "yarn"),
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


MANY = 1 << 40
EXPERTS: dict[str, dict[str, Any]] = {
    "Qwen3MoeForCausalLM": {"num_experts": MANY, "num_experts_per_tok": 1}
    | {"moe_intermediate_size": 8, "decoder_sparse_step": 1},
    "MixtralForCausalLM": {"num_local_experts": MANY},
    "GptOssForCausalLM": {"num_local_experts": MANY, "sliding_window": 8},
    "Llama4ForCausalLM": {"num_local_experts": MANY, "intermediate_size_mlp": 8},
    "DeepseekV3ForCausalLM": {"n_routed_experts": MANY, "num_experts_per_tok": 1}
    | {"moe_intermediate_size": 8, "kv_lora_rank": 8, "v_head_dim": 8}
    | {"qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "first_k_dense_replace": MANY},
}


@pytest.mark.parametrize("architecture", EXPERTS)
def test_more_experts_than_can_be_listed_are_refused(tmp_path: Path, architecture: str) -> None:
    """Nothing is made for each of them: that would take all memory before a weight is looked for.
    The second is a number of each that may be, in more layers than have it.
    """
    fields = {"num_hidden_layers": 3, "architectures": [architecture]} | EXPERTS[architecture]
    for number, layers in ((MANY, 3), (1000, 5000)):
        changes = {name: number if value == MANY else value for name, value in fields.items()}
        with pytest.raises(CheckpointError, match=f"{number} experts in {layers} layers"):
            read_config(write(tmp_path, **changes | {"num_hidden_layers": layers}))


def test_an_architecture_that_is_not_supported_is_refused_with_all_that_are(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="`GPT2LMHeadModel` is not supported") as refused:
        read_config(write(tmp_path, architectures=["GPT2LMHeadModel"]))
    for family in FAMILIES:
        assert family.name in str(refused.value)
        assert all(name in str(refused.value) for name in family.architectures)


def test_a_missing_field_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="hidden_size"):
        read_config(write(tmp_path, without="hidden_size"))


def test_a_missing_or_malformed_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json does not exist"):
        read_config(tmp_path)
    nested = b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    for malformed in (b'{"a": \xff}', nested):
        (tmp_path / "config.json").write_bytes(malformed)
        with pytest.raises(CheckpointError, match=r"config\.json"):
            read_config(tmp_path)
