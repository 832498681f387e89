"""Frequencies and tables against transformers."""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from gpu_pool.layers.rotary_embedding import Llama3Scaling, RotaryEmbedding, compute_frequencies


@pytest.mark.parametrize("scaling", [None, Llama3Scaling(8.0, 1.0, 4.0, 64)])
@pytest.mark.parametrize("theta", [10_000.0, 500_000.0])
def test_tables_are_those_of_transformers(theta: float, scaling: Llama3Scaling | None) -> None:
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": theta}
    if scaling is not None:
        rope |= {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_context,
        }
    config = LlamaConfig(
        hidden_size=128,
        num_attention_heads=4,
        head_dim=32,
        max_position_embeddings=4096,
        rope_parameters=rope,
    )
    reference: Any = LlamaRotaryEmbedding(config)
    positions = torch.tensor([0, 1, 17, 200, 4095])
    expected_cos, expected_sin = reference(torch.zeros(1), positions[None])
    frequencies = compute_frequencies(32, theta, scaling)
    cos, signed_sin = RotaryEmbedding(frequencies, 4096, torch.float32, torch.device("cpu"))(
        positions
    )
    signs = torch.tensor([-1.0] * 16 + [1.0] * 16)
    assert (cos - expected_cos[0]).abs().max() < 1e-4
    assert (signed_sin * signs - expected_sin[0]).abs().max() < 1e-4
