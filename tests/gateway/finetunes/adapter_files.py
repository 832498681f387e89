"""Adapters' files for tests: sound ones by the format's own library, and others byte by byte."""

import json
import struct
from typing import Any

import numpy as np
from safetensors.numpy import save

CONFIG: dict[str, Any] = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "base_model_name_or_path": "meta-llama/Llama-3.2-1B",
    "r": 8,
    "lora_alpha": 16,
    "lora_dropout": 0.05,
    "bias": "none",
    "use_rslora": False,
    "use_dora": False,
    "fan_in_fan_out": False,
    "init_lora_weights": True,
    "inference_mode": True,
    "layers_to_transform": None,
    "loftq_config": {},
    "megatron_config": None,
    "megatron_core": "megatron.core",
    "modules_to_save": None,
    "rank_pattern": {},
    "alpha_pattern": {},
    "target_modules": ["q_proj", "v_proj"],
    "model_type": "llama",
}
"""As PEFT writes one."""


def format_config(**changed: Any) -> bytes:
    """The configuration with some fields changed."""
    return json.dumps(CONFIG | changed).encode()


def name_tensor(layer: int, half: str, middle: str = "") -> str:
    """The name of one half of a layer's pair."""
    return f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_{half}{middle}.weight"


def make_weights(
    rank: int = 8, num_layers: int = 2, width: int = 16, seed: int = 0, middle: str = ""
) -> bytes:
    """A sound file; another `seed` gives another of the same size."""
    random = np.random.default_rng(seed)
    tensors = {}
    for layer in range(num_layers):
        a, b = random.random((rank, width)), random.random((width, rank))
        tensors[name_tensor(layer, "A", middle)] = a.astype(np.float32)
        tensors[name_tensor(layer, "B", middle)] = b.astype(np.float16)
    return save(tensors)


def format_weights(header: Any, num_bytes: int = 0) -> bytes:
    """A file with this header, whatever it says, and so many bytes behind it."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(num_bytes)


def describe_pair(rank: int = 8, width: int = 16, dtype: str = "F32") -> dict[str, Any]:
    """The header of one sound pair, to be made worse."""
    size = rank * width * {"F32": 4, "F16": 2, "BF16": 2}.get(dtype, 4)
    return {
        name_tensor(0, "A"): {"dtype": dtype, "shape": [rank, width], "data_offsets": [0, size]},
        name_tensor(0, "B"): {
            "dtype": dtype,
            "shape": [width, rank],
            "data_offsets": [size, 2 * size],
        },
    }
