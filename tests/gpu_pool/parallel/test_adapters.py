"""Adapters of models that ranks share: each rank has its part, and together they answer as one."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as change

from gpu_pool.lora import products
from gpu_pool.parallel.place import ParallelShape
from gpu_pool.plan import AdapterFile
from gpu_pool.worker.worker import create_executor
from tests.gpu_pool.lora.adapter_files import (
    ATTENTION,
    DENSE,
    create_tensors,
    load,
    write_adapter,
    write_tensors,
)
from tests.gpu_pool.models.deepseek.test_model import V3
from tests.gpu_pool.models.family_checkpoint import write_checkpoint
from tests.gpu_pool.models.gpt_oss.test_model import GPT_OSS
from tests.gpu_pool.models.llama4.test_model import LLAMA4
from tests.gpu_pool.parallel.rank_check import MAX_ERROR, Answers, ask
from tests.gpu_pool.parallel.test_families import LLAMA4_LAYERS, describe
from tests.gpu_pool.parallel.test_parallel_executor import Start, start
from tests.gpu_pool.parallel.thread_ranks import ThreadExecutor

__all__ = ["start"]  # a fixture

ROOM: dict[str, Any] = {"adapter_bytes": 4 << 20, "max_adapter_rank": 16}
LATENT = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj", "shared_experts.down_proj")
FAMILIES: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "llama": ("llama", {"num_hidden_layers": 4}, DENSE),
    "llama, one KV head": ("llama", {"num_hidden_layers": 4, "num_key_value_heads": 1}, DENSE),
    "deepseek v3": ("deepseek_v3", V3 | {"num_hidden_layers": 4, "seed": 1}, LATENT),
    "gpt-oss": ("gpt_oss", GPT_OSS, ATTENTION),
    "llama 4": ("llama4_text", LLAMA4 | LLAMA4_LAYERS, ATTENTION),
}
QUICK = ("llama, one KV head", "deepseek v3")
SHAPES = (ParallelShape(2, 1), ParallelShape(1, 2), ParallelShape(2, 2))


def write(folder: Path, name: str) -> tuple[Path, AdapterFile]:
    model_type, changes, endings = FAMILIES[name]
    checkpoint = write_checkpoint(folder / "model", model_type, **changes)
    return checkpoint, write_adapter(folder / "a.safetensors", checkpoint, endings, size=0.1)


def ask_whole(folder: Path, adapter: AdapterFile) -> Answers:
    executor = create_executor(describe(folder, **ROOM))
    load(executor, adapter)
    answers = ask(executor, adapter)
    executor.close()
    return answers


def ask_ranks(folder: Path, adapter: AdapterFile, shape: ParallelShape) -> Answers:
    """Threads stand for ranks."""
    executor = ThreadExecutor(describe(folder, **ROOM), shape)
    try:
        load(executor, adapter)
        return ask(executor, adapter)
    finally:
        executor.close()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in FAMILIES]
)
def test_ranks_answer_as_one(name: str, shape: ParallelShape, tmp_path: Path) -> None:
    checkpoint, adapter = write(tmp_path, name)
    whole = ask_whole(checkpoint, adapter)
    ranks = ask_ranks(checkpoint, adapter, shape)
    assert ranks.token_ids == whole.token_ids
    assert ranks.measure_error(whole) <= MAX_ERROR


@pytest.mark.parametrize("share", ["outputs", "inputs"])
def test_a_wrong_share_is_found(
    share: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, adapter = write(tmp_path, "llama")
    whole = ask_whole(checkpoint, adapter)
    lay_out = products.ModelProducts._lay_out

    def take_first(self: Any, name: str, pairs: Any) -> products.AdaptedProduct:
        """Every rank takes rank 0's rows of B, or columns of A."""
        product = lay_out(self, name, pairs)
        placed = [
            one
            if (own := getattr(one, share)) is None
            else replace(one, **{share: range(len(own))})
            for one in product.placed
        ]
        return replace(product, placed=tuple(placed))

    monkeypatch.setattr(products.ModelProducts, "_lay_out", take_first)
    ranks = ask_ranks(checkpoint, adapter, ParallelShape(2, 1))
    assert ranks.measure_error(whole) > 100 * MAX_ERROR


def test_processes_load_compute_drop_and_refuse_together(start: Start, tmp_path: Path) -> None:
    checkpoint, adapter = write(tmp_path, "llama")
    whole = ask_whole(checkpoint, adapter)
    executor = start(checkpoint, ParallelShape(1, 2), worker=ROOM)
    assert executor.info.adapter_bytes == 4 << 20
    assert executor.info.max_adapter_rank == 16
    news = load(executor, adapter)
    assert 0 < news.num_bytes < 4 << 20
    assert ask(executor, adapter).measure_error(whole) <= MAX_ERROR
    # What the last stage alone refuses is not kept by the first.
    tensors = create_tensors({"model.layers.0.self_attn.q_proj": (64, 64)})
    bad = create_tensors({"model.norm": (64, 1)})
    half = write_tensors(tmp_path / "half.safetensors", tensors | bad)
    executor.load_adapter(half, lambda: None)
    (refused,) = executor.poll_adapters()
    assert "no product that takes an adapter" in refused.refused
    good = change(half, path=str(write_tensors(tmp_path / "good.safetensors", tensors).path))
    executor.load_adapter(good, lambda: None)
    assert [one.is_loaded for one in executor.poll_adapters()] == [True]
    executor.drop_adapter(good.digest)
    executor.sleep()
    executor.wake()
    load(executor, adapter)
    assert ask(executor, adapter).token_ids == whole.token_ids
