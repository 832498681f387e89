"""Bits of packed weights: of small checkpoints as they lie in files, of published ones by hand."""

import json
from math import prod
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from gpu_pool.capacity.model_size import read_model_size
from gpu_pool.models.errors import CheckpointError
from tests.gpu_pool.models.family_check import Variant
from tests.gpu_pool.models.packed_checkpoint import write_packed
from tests.gpu_pool.weights.formats.packers import FORMATS

LLAMA: Variant = ("llama", {})
UNCOUNTED = ("weight_shape", "input_scale")
"""What does not grow with a matrix."""
ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "I32": 4, "I64": 8, "I8": 1, "F8_E4M3": 1}
QWEN: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 3584,
    "intermediate_size": 18_944,
    "max_position_embeddings": 32_768,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "vocab_size": 152_064,
}
"""Qwen2.5-7B-Instruct, of which all these have been published."""
AWQ: dict[str, Any] = {
    "bits": 4,
    "group_size": 128,
    "modules_to_not_convert": None,
    "quant_method": "awq",
    "version": "gemm",
    "zero_point": True,
}
GPTQ: dict[str, Any] = {
    "batch_size": 1,
    "bits": 4,
    "block_name_to_quantize": None,
    "cache_block_outputs": True,
    "damp_percent": 0.01,
    "dataset": None,
    "desc_act": False,
    "exllama_config": {"version": 1},
    "group_size": 128,
    "max_input_length": None,
    "model_seqlen": None,
    "modules_in_block_to_quantize": None,
    "module_name_preceding_first_block": None,
    "pad_token_id": None,
    "quant_method": "gptq",
    "sym": True,
    "tokenizer": None,
    "true_sequential": True,
    "use_cuda_fp16": False,
    "use_exllama": True,
}


def describe_llm_compressor(form: str, activations: Any, **weights: Any) -> dict[str, Any]:
    """What llm-compressor writes."""
    shared = {"actorder": None, "block_structure": None, "dynamic": False, "observer": "minmax"}
    group = {
        "input_activations": activations,
        "output_activations": None,
        "targets": ["Linear"],
        "weights": shared | {"observer_kwargs": {}, "symmetric": True} | weights,
    }
    return {
        "config_groups": {"group_0": group},
        "format": form,
        "global_compression_ratio": 1.4,
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
    }


FP8_DYNAMIC = describe_llm_compressor(
    "float-quantized",
    {"dynamic": True, "num_bits": 8, "strategy": "token", "symmetric": True, "type": "float"},
    num_bits=8,
    type="float",
    strategy="channel",
    group_size=None,
)
W4A16 = describe_llm_compressor(
    "pack-quantized", None, num_bits=4, type="int", strategy="group", group_size=128
)
W8A8 = describe_llm_compressor(
    "int-quantized",
    {"dynamic": True, "num_bits": 8, "strategy": "token", "symmetric": True, "type": "int"},
    num_bits=8,
    type="int",
    strategy="channel",
    group_size=None,
)
MATRICES = [(3584, 3584), (512, 3584), (512, 3584), (3584, 3584)]
MATRICES += [(18_944, 3584), (18_944, 3584), (3584, 18_944)]
PACKED = 28 * sum(map(prod, MATRICES))
REST_BYTES = 2 * (2 * 152_064 * 3584 + 28 * (3584 + 2 * 512 + 2 * 3584) + 3584)
"""Embeddings, head, biases and norms."""
NUM_OUTPUTS = 28 * sum(rows for rows, _ in MATRICES)
NUM_INPUTS = 28 * sum(columns for _, columns in MATRICES)


@pytest.mark.parametrize(
    ("config", "packed_bytes"),
    [
        (AWQ, PACKED * (4 + (16 + 4) / 128) / 8),
        (GPTQ, PACKED * (4 + (16 + 4) / 128) / 8 + 4 * NUM_INPUTS),
        (W4A16, PACKED * (4 + 16 / 128) / 8),
        (FP8_DYNAMIC, PACKED + 2 * NUM_OUTPUTS),
        (W8A8, PACKED + 2 * NUM_OUTPUTS),
        ({"quant_method": "fp8", "activation_scheme": "static"}, PACKED),
        ({"quant_method": "fbgemm_fp8"}, PACKED + 4 * NUM_OUTPUTS),
    ],
)
def test_published_checkpoints_weigh_what_is_stored(
    config: dict[str, Any], packed_bytes: float
) -> None:
    content = json.dumps(QWEN | {"quantization_config": config}).encode()
    size, loaded = read_model_size(content), read_model_size(content, is_loaded=True)
    assert size.weight_bytes == pytest.approx(packed_bytes + REST_BYTES, abs=200)
    assert loaded.weight_bytes == 2 * PACKED + REST_BYTES


BLOCKS = FP8_DYNAMIC | {
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {
                "num_bits": 8,
                "type": "float",
                "symmetric": True,
                "strategy": "block",
                "block_structure": [128, 128],
                "dynamic": False,
            },
        }
    }
}


@pytest.mark.parametrize(
    "config", [{"quant_method": "fp8", "weight_block_size": [128, 128]}, BLOCKS]
)
def test_what_is_in_fp8_blocks_stays_so_on_gpus(config: dict[str, Any]) -> None:
    content = json.dumps(QWEN | {"quantization_config": config}).encode()
    loaded = read_model_size(content, is_loaded=True)
    scales = 4 * PACKED // 128**2
    assert loaded.weight_bytes == PACKED + scales + REST_BYTES


@pytest.mark.parametrize("form", FORMATS)
def test_small_checkpoints_weigh_what_lies_in_their_file(form: str, tmp_path: Path) -> None:
    packed, _ = write_packed(tmp_path, form, LLAMA)
    stored = 0
    with safe_open(packed / "model.safetensors", "pt") as file:
        for name in file.keys():  # noqa: SIM118
            if not name.endswith(UNCOUNTED):
                part = file.get_slice(name)
                stored += prod(part.get_shape()) * ITEM_BYTES[part.get_dtype()]
    size = read_model_size((packed / "config.json").read_bytes())
    per_tensor = 4 * 7 * 3 if form == "fp8 per tensor" else 0
    assert size.weight_bytes == pytest.approx(stored - per_tensor, abs=10)


def count(config: dict[str, Any], **changes: Any) -> int:
    """What the model weighs, packed so."""
    content = QWEN | {"quantization_config": config} | changes
    return read_model_size(json.dumps(content).encode()).weight_bytes


def test_what_is_left_out_keeps_its_bits() -> None:
    down = 28 * 3584 * 18_944
    kept = round(down * (2 - (4 + 20 / 128) / 8))
    for left_out in ("down_proj", "mlp.down_proj"):
        assert count(AWQ | {"modules_to_not_convert": [left_out]}) - count(AWQ) == kept
    assert count(AWQ | {"modules_to_not_convert": ["down"]}) == count(AWQ)
    by_pattern = count(GPTQ | {"dynamic": {"-:.*down_proj": {}}}) - count(GPTQ)
    assert by_pattern == round(kept - 28 * 4 * 18_944)
    assert count(GPTQ | {"lm_head": True}) < count(GPTQ) - 152_064 * 3584


def test_groups_of_several_kinds_are_counted_each() -> None:
    down = {"targets": ["re:.*down_proj"], "weights": FP8_DYNAMIC["config_groups"]["group_0"]}
    groups = W4A16["config_groups"] | {
        "down": down["weights"] | {"targets": down["targets"], "format": "float-quantized"}
    }
    mixed = count(W4A16 | {"format": "pack-quantized", "config_groups": groups})
    num_down = 28 * 3584 * 18_944
    expected = num_down * (1 - (4 + 16 / 128) / 8) + 2 * 28 * 3584
    assert mixed - count(W4A16) == pytest.approx(expected, abs=200)


def test_what_hearth_does_not_load_is_not_counted() -> None:
    for wrong in (GPTQ | {"bits": 3}, AWQ | {"version": "gemv"}, W4A16 | {"format": "marlin-24"}):
        with pytest.raises(CheckpointError, match="Supported are"):
            count(wrong)
