"""Rows with an adapter against transformers with merged weights: every family, every way, in fp32.

Mutations of what is added, of whose it is and of where it goes must be found.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gpu_pool.compute_choice import DtypeChoice
from gpu_pool.lora import loading, products
from gpu_pool.lora.loading import LowRankProduct
from gpu_pool.plan import AdapterFile
from gpu_pool.worker.settings import WorkerSettings
from gpu_pool.worker.worker import create_executor
from tests.gpu_pool.lora.adapter_files import (
    ATTENTION,
    DENSE,
    load,
    merge,
    write_adapter,
    write_calm_checkpoint,
)
from tests.gpu_pool.models.deepseek.test_model import V2, V3
from tests.gpu_pool.models.family_check import (
    LONG,
    MAX_ERROR,
    Seen,
    drive_every_way,
    record_logits,
)
from tests.gpu_pool.models.family_checkpoint import Reference, create_prompt
from tests.gpu_pool.models.gemma.test_model import GEMMA3
from tests.gpu_pool.models.gpt_oss.test_model import GPT_OSS
from tests.gpu_pool.models.llama4.test_model import LLAMA4
from tests.gpu_pool.models.qwen.test_model import EXPERTS
from tests.gpu_pool.plan_driver import PlanDriver

LATENT = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj", "shared_experts.gate_proj")
LATENT += ("shared_experts.up_proj", "shared_experts.down_proj")
FAMILIES: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "llama": ("llama", {"attention_bias": True, "mlp_bias": True}, DENSE),
    "llama, queries and values": ("llama", {}, ("q_proj", "v_proj")),
    "qwen3": ("qwen3", {}, DENSE),
    "gemma 3": ("gemma3_text", GEMMA3, DENSE),
    "gpt-oss": ("gpt_oss", GPT_OSS, ATTENTION),
    "qwen3 moe": ("qwen3_moe", EXPERTS, ATTENTION),
    "deepseek v2 lite": (
        "deepseek_v2",
        V2 | {"topk_method": "greedy", "q_lora_rank": None},
        ("q_proj", "kv_a_proj_with_mqa", "o_proj", "shared_experts.down_proj"),
    ),
    "deepseek v3": ("deepseek_v3", V3, LATENT),
    "llama 4": ("llama4_text", LLAMA4, (*ATTENTION, "shared_expert.up_proj")),
}
QUICK = ("llama", "qwen3", "gemma 3", "deepseek v3", "llama 4")
"""The other families are for `make test-slow`."""


def create_driver(
    folder: Path, dtype: DtypeChoice = DtypeChoice.FLOAT32, **fields: Any
) -> PlanDriver:
    settings = WorkerSettings(
        model_dir=folder,
        dtype=dtype,
        num_blocks=160,
        num_threads=1,
        adapter_bytes=64 << 20,
        max_adapter_rank=64,
        **fields,
    )
    return PlanDriver(create_executor(settings))


def see_every_way(folder: Path, adapter: AdapterFile) -> tuple[PlanDriver, list[Seen]]:
    """The logits of all tokens in every way of computing them, with the adapter."""
    driver = create_driver(folder)
    load(driver.executor, adapter)
    driver.adapter = adapter
    seen = record_logits(driver)
    drive_every_way(driver)
    driver.executor.close()
    return driver, seen


def measure_error(
    driver: PlanDriver, seen: list[Seen], reference: Callable[[list[int]], Tensor]
) -> float:
    """The largest difference of two logits."""
    known = [sequence.token_ids for sequence in driver.sequences.values()]
    worst = 0.0
    for part in seen:
        end = len(part.token_ids)
        whole = max((ids for ids in known if ids[:end] == part.token_ids), key=len)
        expected = reference(whole)[part.start : end]
        worst = max(worst, (part.logits - expected).abs().max().item())
    return worst


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in FAMILIES],
)
def test_logits_are_those_of_merged_weights(name: str, tmp_path: Path) -> None:
    model_type, changes, endings = FAMILIES[name]
    folder = write_calm_checkpoint(tmp_path, model_type, **changes)
    adapter = write_adapter(tmp_path / "adapter.safetensors", folder, endings, size=0.1)
    driver, seen = see_every_way(folder, adapter)
    reference = Reference(merge(folder, adapter, tmp_path / "merged"))
    assert measure_error(driver, seen, reference.compute_logits) <= MAX_ERROR
    base = Reference(folder)  # the control: the adapter does something
    assert measure_error(driver, seen, base.compute_logits) > 1000 * MAX_ERROR


@pytest.mark.parametrize("rank", [1, 8, 40])
def test_every_rank_is_exact(rank: int, tmp_path: Path) -> None:
    """At rank 40 the pairs of a fused product are multiplied one by one."""
    folder = write_calm_checkpoint(tmp_path, "llama")
    adapter = write_adapter(tmp_path / "a.safetensors", folder, rank=rank, size=0.1, scale=0.7)
    driver, seen = see_every_way(folder, adapter)
    reference = Reference(merge(folder, adapter, tmp_path / "merged"))
    assert measure_error(driver, seen, reference.compute_logits) <= MAX_ERROR


def test_our_own_merged_model_answers_alike(tmp_path: Path) -> None:
    folder = write_calm_checkpoint(tmp_path, "qwen3")
    adapter = write_adapter(tmp_path / "adapter.safetensors", folder)
    _, seen = see_every_way(folder, adapter)
    merged = create_driver(merge(folder, adapter, tmp_path / "merged"))
    expected = record_logits(merged)
    drive_every_way(merged)
    for one, other in zip(seen, expected, strict=True):
        assert one.token_ids == other.token_ids
        assert (one.logits - other.logits).abs().max() <= MAX_ERROR
    merged.executor.close()


def generate_mixed(driver: PlanDriver, adapters: list[AdapterFile | None]) -> list[list[int]]:
    """Prompts of all adapters taking turns in every step; the sequences' tokens."""
    ids = []
    for n in range(3 * len(adapters)):
        driver.adapter = adapters[n % len(adapters)]
        ids.append(driver.add(create_prompt(20 + 7 * n, n)))
    driver.step([(ids[0], 9), (ids[1], 27), (ids[4], 30)])
    driver.generate(ids, 5, max_chunk=23)
    return [driver.sequences[i].token_ids for i in ids]


def test_a_mixed_batch_gives_each_row_its_own_adapter(tmp_path: Path) -> None:
    folder = write_calm_checkpoint(tmp_path, "qwen3")
    one = write_adapter(tmp_path / "1.safetensors", folder, seed=1)
    two = write_adapter(tmp_path / "2.safetensors", folder, ("q_proj", "down_proj"), seed=2, rank=9)
    driver = create_driver(folder)
    load(driver.executor, one)
    load(driver.executor, two)
    seen = record_logits(driver)
    sequences = generate_mixed(driver, [one, two, None])
    references = [
        Reference(merge(folder, one, tmp_path / "m1")),
        Reference(merge(folder, two, tmp_path / "m2")),
        Reference(folder),
    ]
    num_seen = [0, 0, 0]
    for part in seen:
        end = len(part.token_ids)
        (n,) = [n for n, ids in enumerate(sequences) if ids[:end] == part.token_ids]
        num_seen[n % 3] += 1
        expected = references[n % 3].compute_logits(sequences[n])[part.start : end]
        assert (part.logits - expected).abs().max() <= MAX_ERROR
    assert min(num_seen) > 10
    driver.executor.close()


# -- mutations -------------------------------------------------------------------------------------


def ignore_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    place = loading.AdapterLoading._load_product

    def load_product(self: Any, file: Any, product: Any, scale: float) -> LowRankProduct:
        return place(self, file, product, 1.0)

    monkeypatch.setattr(loading.AdapterLoading, "_load_product", load_product)


def shift_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries' rows begin where they should, those of all further parts one row too early."""
    lay_out = products.ModelProducts._lay_out

    def shift(self: Any, name: str, pairs: Any) -> products.AdaptedProduct:
        product = lay_out(self, name, pairs)
        placed = [
            replace(one, rows=range(one.rows.start - 1, one.rows.stop - 1)) if index else one
            for index, one in enumerate(product.placed)
        ]
        return replace(product, placed=tuple(placed))

    monkeypatch.setattr(products.ModelProducts, "_lay_out", shift)


def swap_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pair's B is multiplied with another pair's A."""
    lay_out = products.ModelProducts._lay_out

    def swap(self: Any, name: str, pairs: Any) -> products.AdaptedProduct:
        product = lay_out(self, name, pairs)
        count = len(product.placed)
        ordered = [product.placed[(index + 1) % count].pair.a for index in range(count)]
        placed = [
            replace(one, pair=replace(one.pair, a=a))
            for one, a in zip(product.placed, ordered, strict=True)
        ]
        return replace(product, placed=tuple(placed))

    monkeypatch.setattr(products.ModelProducts, "_lay_out", swap)


def add_to_first_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """What belongs to the last rows of a product is added to its first."""
    add = LowRankProduct.add

    def shift(self: LowRankProduct, x_TK: Tensor, y_TM: Tensor) -> None:
        add(self, x_TK, torch.roll(y_TM, 1, 0) if len(y_TM) > 1 else y_TM)

    monkeypatch.setattr(LowRankProduct, "add", shift)


@pytest.mark.parametrize("mutate", [ignore_scale, shift_parts, swap_ranks, add_to_first_rows])
def test_a_mutation_is_found(
    mutate: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_calm_checkpoint(tmp_path, "llama")
    adapter = write_adapter(tmp_path / "adapter.safetensors", folder)
    mutate(monkeypatch)
    driver = create_driver(folder)
    load(driver.executor, adapter)
    driver.adapter = adapter
    seen = record_logits(driver)
    driver.generate([driver.add(create_prompt(LONG, 7)), driver.add(create_prompt(3, 8))], 2)
    driver.executor.close()
    reference = Reference(merge(folder, adapter, tmp_path / "merged"))
    assert measure_error(driver, seen, reference.compute_logits) > 100 * MAX_ERROR
