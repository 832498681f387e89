"""The list of parameters against what transformers saves."""

from pathlib import Path
from typing import Any

import pytest

from gpu_pool.models.llama.names import list_ignored, list_parameters
from gpu_pool.models.llama.sharding import SPLITS
from gpu_pool.weights.checkpoint import Checkpoint
from gpu_pool.weights.config import read_config
from tests.gpu_pool.tiny_llama import write_tiny_llama


@pytest.mark.parametrize(
    "changes",
    [{}, {"tie_word_embeddings": True}, {"attention_bias": True, "mlp_bias": True}],
)
def test_parameters_are_exactly_what_transformers_saves(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    write_tiny_llama(tmp_path, **changes)
    parameters = list_parameters(read_config(tmp_path).llama)
    listed = {part.name: part.shape for source in parameters.values() for part in source.parts}
    with Checkpoint(tmp_path) as checkpoint:
        assert listed == checkpoint.shapes


def test_a_head_saved_beside_tied_embeddings_is_ignored(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path, tie_word_embeddings=True)
    config = read_config(tmp_path).llama
    assert "lm_head.weight" in list_ignored(config)
    assert "model.layers.2.self_attn.rotary_emb.inv_freq" in list_ignored(config)
    write_tiny_llama(tmp_path)
    assert "lm_head.weight" not in list_ignored(read_config(tmp_path).llama)


def test_every_parameter_has_a_split_and_no_split_is_left_over(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path, attention_bias=True, mlp_bias=True)
    parameters = list_parameters(read_config(tmp_path).llama)
    assert {name.rsplit(".", 1)[-1] for name in parameters} == set(SPLITS)
