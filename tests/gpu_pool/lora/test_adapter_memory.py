"""Adapters that come and go while a model computes."""

import threading
from pathlib import Path
from typing import Any

import pytest

from gpu_pool.compute_choice import DtypeChoice
from gpu_pool.lora import adapter_memory
from gpu_pool.lora.loading import AdapterLoading
from gpu_pool.models.native_passage import NativePassage
from gpu_pool.worker.plan_worker import Worker
from tests.gpu_pool.lora.adapter_files import load, write_adapter
from tests.gpu_pool.lora.test_exactness import create_driver
from tests.gpu_pool.models.family_checkpoint import create_prompt, write_checkpoint
from tests.gpu_pool.plan_driver import PlanDriver

WIDE = {"head_dim": 32, "hidden_size": 72, "intermediate_size": 104}
"""What native kernels take through all layers in one call."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("llama"), "llama", **WIDE)


def find_memory(driver: PlanDriver) -> Any:
    assert isinstance(driver.executor, Worker)
    return driver.executor.adapters


@pytest.mark.parametrize("dtype", [DtypeChoice.FLOAT32, DtypeChoice.BFLOAT16])
def test_what_is_loaded_takes_what_was_measured(
    dtype: DtypeChoice, checkpoint: Path, tmp_path: Path
) -> None:
    driver = create_driver(checkpoint, dtype)
    for rank in (1, 8, 40):
        adapter = write_adapter(tmp_path / f"{rank}.safetensors", checkpoint, rank=rank)
        memory = find_memory(driver)
        measured = memory.measure_now(adapter).num_bytes
        assert measured == memory.load_now(adapter).num_bytes > 0
        weights = [
            weight
            for product in memory.find(adapter).products.values()
            for weight in (product.a, *(b for _, _, b in product.pieces))
        ]
        held = sum(weight.packed.nbytes for weight in weights if hasattr(weight, "num_outputs"))
        if dtype is DtypeChoice.BFLOAT16:
            assert measured == held
    driver.executor.close()


@pytest.mark.parametrize("dtype", [DtypeChoice.FLOAT32, DtypeChoice.BFLOAT16])
def test_a_load_beside_steps_changes_no_running_stream(
    dtype: DtypeChoice, checkpoint: Path, tmp_path: Path
) -> None:
    calm = create_driver(checkpoint, dtype)
    (expected,) = calm.generate([calm.add(create_prompt(30, 1))], 40)
    calm.executor.close()
    driver = create_driver(checkpoint, dtype)
    running = driver.add(create_prompt(30, 1))
    driver.step([(running, 30)])
    loaded = []
    for number in range(4):
        adapter = write_adapter(tmp_path / f"{number}.safetensors", checkpoint, seed=number)
        has_news = threading.Event()
        driver.executor.load_adapter(adapter, has_news.set)
        for _ in range(8):
            driver.step([(running, 1)])
        assert has_news.wait(30)
        assert [news.is_loaded for news in driver.executor.poll_adapters()] == [True]
        loaded.append(adapter)
        if number == 2:
            driver.executor.drop_adapter(loaded[0].digest)
    driver.generate([running], 40)
    assert driver.sequences[running].output == expected
    driver.adapter = loaded[-1]  # the control: it was loaded to some effect
    (other,) = driver.generate([driver.add(create_prompt(30, 1))], 40)
    assert other != expected
    driver.executor.close()


def test_steps_without_an_adapter_stay_one_native_call(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = create_driver(checkpoint, DtypeChoice.BFLOAT16)
    adapter = write_adapter(tmp_path / "a.safetensors", checkpoint)
    load(driver.executor, adapter)
    num_runs = 0
    run = NativePassage.run

    def count(*told: Any) -> Any:
        nonlocal num_runs
        num_runs += 1
        return run(*told)

    monkeypatch.setattr(NativePassage, "run", count)
    plain = driver.add([5, 6, 7])
    driver.generate([plain], 3)
    if not num_runs:
        pytest.skip("there are no native kernels here")
    driver.adapter = adapter
    adapted = driver.add([5, 6, 7])
    before = num_runs
    driver.generate([adapted], 3)
    driver.generate([plain, adapted], 5)  # some with both
    assert num_runs <= before + 1
    before = num_runs
    driver.generate([plain], 9)
    assert num_runs == before + 4
    driver.executor.close()


def test_all_are_dropped_at_sleep_and_what_comes_then_is_void(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = create_driver(checkpoint)
    one = write_adapter(tmp_path / "1.safetensors", checkpoint, seed=1)
    two = write_adapter(tmp_path / "2.safetensors", checkpoint, seed=2)
    load(driver.executor, one)
    driver.adapter = one
    (expected,) = driver.generate([driver.add(create_prompt(30, 1))], 5)
    goes_on, has_news = threading.Event(), threading.Event()
    load_slowly = AdapterLoading.load

    def wait(self: AdapterLoading, adapter: Any) -> Any:
        assert goes_on.wait(30)
        return load_slowly(self, adapter)

    monkeypatch.setattr(AdapterLoading, "load", wait)
    driver.executor.load_adapter(two, has_news.set)
    driver.release(next(iter(driver.sequences)))
    driver.executor.sleep()
    goes_on.set()
    driver.executor.wake()
    assert has_news.wait(30)
    assert driver.executor.poll_adapters() == ()
    memory = find_memory(driver)
    for adapter in (one, two):
        with pytest.raises(KeyError):
            memory.find(adapter)
    load(driver.executor, one)
    fresh = driver.add(create_prompt(30, 1))
    assert driver.generate([fresh], 5) == [expected]
    driver.executor.close()


def test_nothing_is_computed_with_what_was_dropped(checkpoint: Path, tmp_path: Path) -> None:
    driver = create_driver(checkpoint)
    adapter = write_adapter(tmp_path / "a.safetensors", checkpoint)
    load(driver.executor, adapter)
    driver.adapter = adapter
    sequence = driver.add([1, 2, 3])
    driver.generate([sequence], 2)
    driver.executor.drop_adapter(adapter.digest)
    with pytest.raises(AssertionError, match="dropped"):
        driver.generate([sequence], 3)
    driver.executor.close()


@pytest.mark.parametrize("num_kept", [adapter_memory.MAX_REFUSED, 0])
def test_what_was_refused_is_not_looked_at_again_before_a_sleep(
    num_kept: int, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With none kept, the control, it would be with each request."""
    monkeypatch.setattr(adapter_memory, "MAX_REFUSED", num_kept)
    num_looks = 0
    load_one = AdapterLoading.load

    def count(self: AdapterLoading, adapter: Any) -> Any:
        nonlocal num_looks
        num_looks += 1
        return load_one(self, adapter)

    monkeypatch.setattr(AdapterLoading, "load", count)
    driver = create_driver(checkpoint)
    memory = find_memory(driver)
    bad = write_adapter(tmp_path / "bad.safetensors", checkpoint, scale=1e39)
    good = write_adapter(tmp_path / "good.safetensors", checkpoint, seed=1)
    told = {memory.load_now(bad).refused for _ in range(3)}
    assert len(told) == 1
    assert "too large by its scale" in told.pop()
    assert num_looks == (1 if num_kept else 3)
    assert memory.load_now(good).is_loaded
    driver.executor.sleep()
    driver.executor.wake()
    assert memory.load_now(bad).refused
    assert num_looks == (3 if num_kept else 5)
    Path(bad.path).write_bytes(Path(good.path).read_bytes())  # another file is looked at
    assert "too large" in memory.load_now(bad).refused
    assert num_looks == (4 if num_kept else 6)
    driver.executor.close()
