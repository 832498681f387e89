"""A head that is the embedding is there once, in whichever form it is multiplied in."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from gpu_pool.compute_choice import DtypeChoice
from gpu_pool.kernels.linear import NativeWeight
from gpu_pool.weights.tensor_search import find_tensors
from gpu_pool.worker.settings import WorkerSettings
from gpu_pool.worker.worker import create_executor
from tests.gpu_pool.kernels.cpu.native_levels import NAMES, one_thread
from tests.gpu_pool.models.family_checkpoint import write_checkpoint

__all__ = ["one_thread"]  # an executor sets the process's threads: they are put back
FAMILIES = {"llama": {}, "gemma3_text": {"query_pre_attn_scalar": 16, "sliding_window": 40}}


def load_model(folder: Path, **changes: Any) -> Any:
    """The network, in bf16 on native kernels where there are any."""
    fields: dict[str, Any] = {"dtype": DtypeChoice.BFLOAT16, "num_threads": 1, "num_blocks": 40}
    executor: Any = create_executor(WorkerSettings(model_dir=folder, **(fields | changes)))
    return executor._model


def count_vocabularies(model: Any, num_numbers: int) -> int:
    """Memories of the model that are as large as the embedding."""
    return sum(tensor.numel() >= num_numbers for tensor in find_tensors(model))


@pytest.mark.skipif(not NAMES, reason="there are no native kernels here")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_tied_head_is_the_embedding(family: str, tmp_path: Path) -> None:
    changes: dict[str, Any] = FAMILIES[family] | {"vocab_size": 600, "intermediate_size": 64}
    tied = write_checkpoint(tmp_path / "tied", family, tie_word_embeddings=True, **changes)
    model = load_model(tied)
    assert isinstance(model._embedding.weight_VD, NativeWeight)
    assert count_vocabularies(model, 600 * 64) == 1
    weights = load_file(tied / "model.safetensors")["model.embed_tokens.weight"]
    token_ids = torch.randint(0, 600, (70,))
    assert torch.equal(model._embedding(token_ids), weights[token_ids].bfloat16())
    apart = write_checkpoint(tmp_path / "apart", family, tie_word_embeddings=False, **changes)
    assert count_vocabularies(load_model(apart), 600 * 64) == 2  # the control


def test_in_fp32_the_rows_stay_beside_the_head(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "tied", "llama", tie_word_embeddings=True)
    model = load_model(folder, dtype=DtypeChoice.FLOAT32)
    assert isinstance(model._embedding.weight_VD, torch.Tensor)
    weights = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(model._embedding(torch.tensor([7])), weights[7:8])
