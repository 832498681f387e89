"""Checkpoints in fp8 blocks: kept as they are, models compute what widened weights compute."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from gpu_pool.kernels.fp8_blocks import FP8
from gpu_pool.models.network import CausalModel
from gpu_pool.weights.tensor_search import find_tensors
from gpu_pool.worker.model_loading import ModelLoader
from gpu_pool.worker.settings import DtypeChoice, WorkerSettings
from gpu_pool.worker.worker import create_executor
from tests.gpu_pool.models.family_check import MAX_ERROR, Seen, record_logits
from tests.gpu_pool.models.family_checkpoint import create_prompt, write_checkpoint
from tests.gpu_pool.plan_driver import PlanDriver

SIZES: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": SIZES,
    "qwen3_moe": SIZES | {"moe_intermediate_size": 128, "num_experts": 4, "num_experts_per_tok": 2},
    "deepseek_v3": SIZES
    | {
        "moe_intermediate_size": 128,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "q_lora_rank": 128,
        "kv_lora_rank": 128,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 16,
        "v_head_dim": 16,
    },
}
ROUTERS = ("mlp.gate.weight", "embed_tokens.weight", "lm_head.weight")


def write_blocks(folder: Path, model_type: str) -> Path:
    """A checkpoint whose matrices are in fp8, with factors of every size."""
    write_checkpoint(folder, model_type, **MODELS[model_type])
    path = folder / "model.safetensors"
    generator = torch.Generator().manual_seed(3)
    packed = dict[str, torch.Tensor]()
    for name, tensor in load_file(path).items():
        if tensor.dim() != 2 or name.endswith(ROUTERS):
            packed[name] = tensor
            continue
        blocks = [-(-size // 128) for size in tensor.shape]
        factors = torch.rand(blocks, generator=generator) / 64 + 1 / 64
        wide = factors.repeat_interleave(128, 0)[: tensor.shape[0]].repeat_interleave(128, 1)
        packed[name] = (tensor / wide[:, : tensor.shape[1]]).clamp(-448, 448).to(FP8)
        packed[f"{name}_scale_inv"] = factors
    save_file(packed, path, {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def compute(folder: Path, *, keeps: bool) -> tuple[list[Seen], list[torch.Tensor]]:
    """All logits of a few prompts and tokens behind them, and the tensors of the model."""
    models: list[CausalModel] = []

    class Loader(ModelLoader):
        """Keeps blocks where it should, on a CPU too, and remembers the model."""

        def __init__(self, *settings: Any, keeps_blocks: bool) -> None:
            del keeps_blocks
            super().__init__(*settings, keeps_blocks=keeps)

        def load_causal(self, *what: Any) -> CausalModel:
            models.append(super().load_causal(*what))
            return models[0]

    settings = WorkerSettings(
        model_dir=folder, dtype=DtypeChoice.FLOAT32, num_blocks=64, num_threads=1
    )
    driver = PlanDriver(create_executor(settings, create_loader=Loader))
    seen = record_logits(driver)
    driver.generate([driver.add(create_prompt(length, length)) for length in (1, 33, 70)], 4)
    return seen, find_tensors(models[0])


@pytest.mark.parametrize("model_type", MODELS)
def test_kept_blocks_compute_what_widened_ones_do(model_type: str, tmp_path: Path) -> None:
    folder = write_blocks(tmp_path, model_type)
    expected, widened = compute(folder, keeps=False)
    found, kept = compute(folder, keeps=True)
    assert not any(tensor.dtype == FP8 for tensor in widened)
    in_fp8 = sum(tensor.numel() for tensor in kept if tensor.dtype == FP8)
    assert in_fp8 > 0.4 * sum(tensor.numel() for tensor in kept)
    for part, other in zip(found, expected, strict=True):
        assert part.token_ids == other.token_ids
        assert other.logits.std() > 0.5  # else any output would pass
        assert (part.logits - other.logits).abs().max() <= MAX_ERROR
