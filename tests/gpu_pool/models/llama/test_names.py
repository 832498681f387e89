"""The list of parameters against what transformers saves."""

from pathlib import Path
from typing import Any

import pytest

from gpu_pool.models.llama.sharding import SPLITS
from gpu_pool.weights.config import read_config
from tests.gpu_pool.models.family_checkpoint import write_checkpoint
from tests.gpu_pool.models.listing_check import find_unlisted, list_last_names


@pytest.mark.parametrize(
    "changes",
    [{}, {"tie_word_embeddings": True}, {"attention_bias": True, "mlp_bias": True}],
)
def test_parameters_are_exactly_what_transformers_saves(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    assert find_unlisted(write_checkpoint(tmp_path, "llama", **changes)) == set()


def test_a_head_saved_beside_tied_embeddings_is_ignored(tmp_path: Path) -> None:
    ignored = read_config(
        write_checkpoint(tmp_path, "llama", tie_word_embeddings=True)
    ).network.ignored
    assert "lm_head.weight" in ignored
    assert "model.layers.2.self_attn.rotary_emb.inv_freq" in ignored
    untied = read_config(write_checkpoint(tmp_path, "llama")).network
    assert "lm_head.weight" not in untied.ignored


def test_every_parameter_has_a_split_and_no_split_is_left_over(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, "llama", attention_bias=True, mlp_bias=True)
    assert list_last_names(folder) == set(SPLITS)
