"""A small Kimi K2 as it ships: a DeepSeek-V3 whose routed experts are int4 in groups of 32. And a
Kimi K2.5, which is that beside what sees.

Source: the package compressed-tensors 0.20, `compressors/pack_quantized` (a number plus 8 in four
bits, eight a word, the lowest bits first) and `quantization/utils/helpers.py: calculate_qparams`
(the factor of a group is its largest magnitude over 7.5).
"""

import json
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.gpu_pool.models.family_checkpoint import write_checkpoint

GROUP_SIZE: Final = 32
_LARGEST: Final = 7.5
_SCALING: Final = {
    "beta_fast": 1.0,
    "beta_slow": 1.0,
    "factor": 8.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 128,
}
_SIZES: Final[dict[str, Any]] = {
    "num_key_value_heads": 4,
    "head_dim": 8,
    "kv_lora_rank": 32,
    "q_lora_rank": 48,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 24,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 4 * GROUP_SIZE,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.827,
    "num_nextn_predict_layers": 0,
    "rope_parameters": {"rope_type": "yarn", "rope_theta": 5e4} | _SCALING,
    "initializer_range": 0.1,
    "sharpness": 8.0,
}
_KIMIS_WORDS: Final[dict[str, Any]] = {
    "model_type": "kimi_k2",
    "moe_layer_freq": 1,
    "rope_scaling": {"type": "yarn"} | _SCALING,
    "rope_theta": 5e4,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16",
}
"""What Kimi's `config.json` says where transformers would write `rope_parameters` and `dtype`."""


def write_kimi(folder: Path, **changes: Any) -> tuple[Path, Path]:
    """The checkpoint as Kimi ships it, and the same with experts of the unpacked numbers, which
    transformers reads; `changes` go over its sizes.
    """
    plain = write_checkpoint(
        folder / "plain", "deepseek_v3", dtype=torch.bfloat16, **(_SIZES | changes)
    )
    packed = folder / "packed"
    packed.mkdir()
    shipped: dict[str, Tensor] = {}
    state = load_file(plain / "model.safetensors")
    for name, weight in list(state.items()):
        if ".mlp.experts." not in name:
            shipped[name] = weight
            continue
        numbers, scales = quantise(weight)
        state[name] = numbers * scales.float().repeat_interleave(GROUP_SIZE, 1)
        shipped[f"{name}_packed"] = pack(numbers)
        shipped[f"{name}_scale"] = scales
        shipped[f"{name}_shape"] = torch.tensor(weight.shape)
    save_file(state, plain / "model.safetensors", {"format": "pt"})
    save_file(shipped, packed / "model.safetensors", {"format": "pt"})
    config = json.loads((plain / "config.json").read_text()) | _KIMIS_WORDS
    del config["rope_parameters"], config["dtype"]
    config["quantization_config"] = describe_packing()
    (packed / "config.json").write_text(json.dumps(config))
    return packed, plain


def let_see(folder: Path) -> None:
    """Makes of a Kimi K2 a K2.5 as it ships: the same as its text part, beside what sees."""
    path = folder / "model.safetensors"
    seeing = {f"language_model.{name}": weight for name, weight in load_file(path).items()}
    seeing["vision_tower.encoder.blocks.0.wqkv.weight"] = torch.randn(96, 32)
    seeing["mm_projector.proj.0.weight"] = torch.randn(128, 128)
    save_file(seeing, path, {"format": "pt"})
    text = json.loads((folder / "config.json").read_text())
    whole = {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "text_config": text,
        "vision_config": {"vt_hidden_size": 32},
    }
    (folder / "config.json").write_text(json.dumps(whole))


def describe_packing(group_size: int = GROUP_SIZE) -> dict[str, Any]:
    """Kimi's `quantization_config`."""
    weights = {
        "actorder": None,
        "block_structure": None,
        "dynamic": False,
        "group_size": group_size,
        "num_bits": 4,
        "observer": "minmax",
        "observer_kwargs": {},
        "strategy": "group",
        "symmetric": True,
        "type": "int",
    }
    group = {"input_activations": None, "output_activations": None, "targets": ["Linear"]}
    return {
        "config_groups": {"group_0": group | {"weights": weights}},
        "format": "pack-quantized",
        "ignore": [
            "lm_head",
            "re:.*self_attn.*",
            "re:.*shared_experts.*",
            "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
        ],
        "kv_cache_scheme": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
    }


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers from -8 to 7 of a matrix, and the factor of each group, both made in its dtype."""
    groups = weight.unflatten(1, (-1, GROUP_SIZE))
    scales = groups.abs().amax(-1) / _LARGEST
    numbers = (groups / scales[..., None]).round().clamp(-8, 7)
    return numbers.flatten(1).to(torch.int8), scales


def pack(numbers: Tensor) -> Tensor:
    """Words of eight numbers each."""
    halves = numbers.to(torch.int64).unflatten(1, (-1, 8)) + 8
    words = (halves << torch.arange(0, 32, 4)).sum(-1)
    return (words - (words >> 31 << 32)).to(torch.int32)
