"""Frequencies and tables against transformers."""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from gpu_pool.layers.rotary_embedding import create_rotary_embedding, to_halves
from gpu_pool.models.config_json import RopeJson, read_rope

LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 256}
ROPES: list[dict[str, Any]] = [
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 8.0},
    {"rope_type": "llama3", "factor": 8.0} | LLAMA3,
    YARN,
    YARN | {"truncate": False, "beta_fast": 16.0, "beta_slow": 2.0},
    YARN | {"beta_fast": 1.0, "beta_slow": 1.0},  # as Kimi K2 has it: nothing is blended
    YARN | {"mscale": 1.0, "mscale_all_dim": 0.7},
    YARN | {"attention_factor": 1.3},
]


@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("theta", [10_000.0, 500_000.0])
def test_tables_are_those_of_transformers(theta: float, rope: dict[str, Any]) -> None:
    config = LlamaConfig(
        hidden_size=128,
        num_attention_heads=4,
        head_dim=32,
        max_position_embeddings=4096,
        rope_parameters=rope | {"rope_theta": theta},
    )
    reference: Any = LlamaRotaryEmbedding(config)
    positions = torch.tensor([0, 1, 17, 200, 4095])
    expected_cos, expected_sin = reference(torch.zeros(1), positions[None])
    form = read_rope(RopeJson(**rope), theta, 4096)
    cos, signed_sin = create_rotary_embedding(form, 32, 4096, torch.zeros(1))(positions)
    signs = torch.tensor([-1.0] * 16 + [1.0] * 16)
    assert (cos - expected_cos[0]).abs().max() < 1e-4
    assert (signed_sin * signs - expected_sin[0]).abs().max() < 1e-4


def test_neighbouring_pairs_become_halves() -> None:
    rows = torch.arange(12.0)[:, None]
    assert to_halves(rows, 6).flatten().tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]
