"""What steps take is measured, with the largest there can be."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import finalize

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from contracts.settings import SettingsError
from gpu_pool.models.network import CausalModel, require_causal
from gpu_pool.parallel.ranks import SOLE_RANK
from gpu_pool.weights.config import read_config
from gpu_pool.worker import step_memory
from gpu_pool.worker.kv_groups import KvDivision, divide_kv
from gpu_pool.worker.model_loading import ModelLoader
from gpu_pool.worker.model_memory import CpuPlaces
from gpu_pool.worker.settings import WorkerSettings
from gpu_pool.worker.step_memory import fit_blocks, measure_steps
from tests.gpu_pool.tiny_llama import write_tiny_llama

VOCAB = 300
WINDOW = 1024


class CpuMeter:
    """Counts the bytes of tensors that live at once."""

    def measure(self, call: Callable[[], None]) -> int:
        watcher = _Watcher()
        with watcher:
            call()
        return watcher.peak


class _Watcher(TorchDispatchMode):
    """Sees every tensor that an operator makes."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = self._living = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.device.type == "cpu":
                self._take(tensor)
        return result

    def _take(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata in self._known:
            return
        self._known.add(storage._cdata)
        self._living += storage.nbytes()
        self.peak = max(self.peak, self._living)
        finalize(storage, self._drop, storage._cdata, storage.nbytes())

    def _drop(self, name: int, num_bytes: int) -> None:
        self._known.discard(name)
        self._living -= num_bytes


@pytest.fixture
def settings(tmp_path: Path) -> WorkerSettings:
    """A tiny model with places for eight sequences."""
    write_tiny_llama(tmp_path)
    return WorkerSettings(model_dir=tmp_path, max_rows=8, max_step_tokens=64)


def load(settings: WorkerSettings) -> tuple[CausalModel, KvDivision]:
    """The model and the form of its KV memory."""
    checked = read_config(settings.model_dir)
    network = require_causal(checked.network)
    loader = ModelLoader(
        settings.model_dir,
        checked.find_packed,
        torch.float32,
        None,
        settings.check_weights,
        SOLE_RANK,
    )
    model = loader.load_causal(network, WINDOW, CpuPlaces().join)
    return model, divide_kv(network.kv_groups, settings, torch.float32, 1)


def test_more_tokens_and_more_rows_take_more(settings: WorkerSettings) -> None:
    model, division = load(settings)
    few, long, many = (
        measure_steps(model, division, replace(settings, **sizes), (WINDOW, VOCAB), CpuMeter())
        for sizes in ({}, {"max_step_tokens": 512}, {"max_rows": 64})
    )
    assert few > 8 * VOCAB * 4  # the logits alone
    assert long > few + 448 * 64 * 4  # the states of that many more tokens
    assert many > few + 56 * VOCAB * 4


def test_a_step_may_hold_several_prompts_as_long_as_the_window(settings: WorkerSettings) -> None:
    model, division = load(settings)
    one, several = (
        measure_steps(model, division, replace(settings, max_step_tokens=size), (64, VOCAB), meter)
        for size, meter in ((64, CpuMeter()), (448, CpuMeter()))
    )
    assert several > one + 384 * 64 * 4


def test_rows_may_ask_for_scores_and_penalties(
    settings: WorkerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, division = load(settings)
    settings = replace(settings, max_rows=64)
    asking = measure_steps(model, division, settings, (WINDOW, VOCAB), CpuMeter())
    plain_sampling = replace(step_memory._ASKING, repetition_penalty=1.0, num_logprobs=None)
    monkeypatch.setattr(step_memory, "_ASKING", plain_sampling)
    plain = measure_steps(model, division, settings, (WINDOW, VOCAB), CpuMeter())
    assert asking >= plain + 64 * VOCAB * 5  # counts at least


def test_blocks_are_what_steps_leave(
    settings: WorkerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, division = load(settings)
    steps_bytes = measure_steps(model, division, settings, (WINDOW, VOCAB), CpuMeter())
    total = 6400 * division.block_bytes
    free = steps_bytes + total // 64 + 9 * division.block_bytes
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, total))
    sizes, meter = (WINDOW, VOCAB), CpuMeter()
    assert fit_blocks(model, division, settings, sizes, meter) == 9
    assert fit_blocks(model, division, settings, sizes, meter, 2 * division.block_bytes) == 7


@pytest.mark.parametrize(
    ("asked", "weights_bytes", "kept"),
    [
        (None, 16 << 30, 1 << 30),
        (None, 12 << 20, 2 << 20),
        (None, 1 << 40, 2 << 30),
        (0, 16 << 30, 0),
        (5, 16 << 30, 5),
    ],
)
def test_adapters_have_a_part_of_what_the_weights_take_unless_it_is_said(
    settings: WorkerSettings, asked: int | None, weights_bytes: int, kept: int
) -> None:
    settings = replace(settings, adapter_bytes=asked)
    assert settings.choose_adapter_bytes(weights_bytes) == kept


def test_a_gpu_without_room_is_an_error_that_says_what_to_do(
    settings: WorkerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, division = load(settings)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (1000, 1000))
    with pytest.raises(SettingsError, match="Lower `max_batch_tokens`"):
        fit_blocks(model, division, settings, (WINDOW, VOCAB), CpuMeter())


def test_recorded_steps_are_measured_with_room_for_the_longest_contexts(
    settings: WorkerSettings,
) -> None:
    model, division = load(settings)
    short, long = (
        measure_steps(model, division, settings, (window, VOCAB), CpuMeter())
        for window in (WINDOW, 64 * WINDOW)
    )
    # Tables of every row, on the device and of the step, twice as recordings take them.
    assert long >= short + 2 * 8 * 63 * WINDOW // 16 * 4
