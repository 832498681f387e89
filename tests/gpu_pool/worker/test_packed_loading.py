"""Starts from the packed copy of a model's weights: the same bits, and never those of others."""

import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gpu_pool.compute_choice import CpuLevel, WeightCheck
from gpu_pool.models.errors import CheckpointError
from gpu_pool.weights import packed_writing
from gpu_pool.weights.config import CheckpointConfig, read_config
from gpu_pool.weights.guard import note_digests
from gpu_pool.weights.packed_file import COPY_FILE
from gpu_pool.weights.tensor_search import find_tensors
from gpu_pool.worker import worker
from gpu_pool.worker.packed_loading import CopyKeeper, create_keeper
from tests.gpu_pool.kernels.cpu.native_levels import NAMES, one_thread
from tests.gpu_pool.models.family_check import record_logits
from tests.gpu_pool.models.family_checkpoint import create_prompt, write_checkpoint
from tests.gpu_pool.models.test_listings import FAMILIES
from tests.gpu_pool.plan_driver import PlanDriver
from tests.gpu_pool.tiny_llama import write_tiny_llama
from tests.gpu_pool.worker.packed_starts import (
    PROMPT,
    all_closed,
    ask,
    find_copy,
    is_mapped,
    leave_copy,
    say_anew,
    start,
)

__all__ = ["all_closed", "one_thread"]  # for what a start leaves behind: threads and their number
pytestmark = pytest.mark.skipif(not NAMES, reason="there are no native kernels here")
VARIANTS = {
    f"{family}: {name}": variant
    for family, (variants, _) in FAMILIES.items()
    for name, variant in variants.items()
}


def compute_logits(driver: PlanDriver) -> list[torch.Tensor]:
    seen = record_logits(driver)
    driver.generate([driver.add(create_prompt(n, n)) for n in (5, 70)], 3)
    return [part.logits for part in seen]


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_family_computes_the_same_bits_from_its_copy(variant: str, tmp_path: Path) -> None:
    model_type, changes = VARIANTS[variant]
    folder = write_checkpoint(tmp_path, model_type, **changes)
    first = start(folder)
    find_copy(first).wait()
    second = start(folder)
    assert is_mapped(second)
    assert second.executor.info == first.executor.info
    pairs = zip(compute_logits(first), compute_logits(second), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_all_that_is_computed_with_lies_in_the_copy_and_is_not_copied(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path, tie_word_embeddings=True)
    leave_copy(tmp_path)
    driver = start(tmp_path)
    executor: Any = driver.executor
    span = find_copy(driver).span
    inside = 0
    for tensor in find_tensors(executor._model):
        inside += span.address <= tensor.data_ptr() < span.address + span.num_bytes
    assert inside == 3 * 6 + 2  # matrices and norms, the embedding that is the head, the last norm
    assert ask(driver) == say_anew(tmp_path)


def test_a_mapped_model_sleeps_and_wakes_and_says_the_same(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path, hidden_size=256, intermediate_size=512)
    expected = leave_copy(tmp_path)
    driver = start(tmp_path)
    assert is_mapped(driver)
    sequence_id = driver.add(PROMPT)
    assert driver.generate([sequence_id], 6) == [expected]
    driver.release(sequence_id)
    given = driver.executor.sleep()
    info = driver.executor.info
    assert given > 0.9 * (info.weights_bytes + info.kv_bytes)
    executor: Any = driver.executor
    put_aside = os.fstat(executor._memory._weights._file).st_size
    assert put_aside < info.weights_bytes // 8  # tables of rotations, and no weights
    assert driver.executor.wake() == given
    assert ask(driver) == expected


def overwrite(path: Path, place: int, by: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(place, os.SEEK_END if place < 0 else os.SEEK_SET)
        file.write(by)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a flipped bit": lambda path: overwrite(path, 5000, b"\x7f"),
    "another byte in the contents": lambda path: overwrite(path, -100, b"\x7f"),
    "another ending": lambda path: overwrite(path, -1, b"\x7f"),
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
    "cut within the ending": lambda path: os.truncate(path, path.stat().st_size - 20),
    "nothing in it": lambda path: os.truncate(path, 0),
    "not a file": lambda path: (path.unlink(), path.mkdir()),
    "a link": lambda path: (path.rename(path.with_name("x")), path.symlink_to("x")),
    "others can write it": lambda path: path.chmod(0o602),
    "others can write the folder": lambda path: path.parent.chmod(0o757),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_copy_that_is_damaged_or_open_to_others_is_not_used(damage: str, tmp_path: Path) -> None:
    write_tiny_llama(tmp_path)
    expected = leave_copy(tmp_path)
    DAMAGES[damage](tmp_path / COPY_FILE)
    driver = start(tmp_path)
    assert not is_mapped(driver)
    find_copy(driver).wait()
    assert ask(driver) == expected
    if damage not in ("not a file", "others can write the folder"):
        assert is_mapped(start(tmp_path))  # a sound one has taken its place


def test_another_checkpoint_under_the_same_path_is_not_answered_from_the_copy(
    tmp_path: Path,
) -> None:
    write_tiny_llama(tmp_path)
    before = leave_copy(tmp_path)
    times = (tmp_path / "model.safetensors").stat()
    write_tiny_llama(tmp_path, seed=1)
    os.utime(tmp_path / "model.safetensors", ns=(times.st_atime_ns, times.st_mtime_ns))
    driver = start(tmp_path)
    assert not is_mapped(driver)
    find_copy(driver).wait()
    assert ask(driver) == say_anew(tmp_path) != before
    assert is_mapped(start(tmp_path))


def test_another_configuration_is_another_copy(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path)
    leave_copy(tmp_path)
    change_config(tmp_path)
    assert not is_mapped(start(tmp_path))


def change_config(folder: Path) -> None:
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"rms_norm_eps": 1e-05', '"rms_norm_eps": 0.1'))


@pytest.mark.parametrize("is_changed", [True, False])
def test_a_configuration_that_changes_once_it_is_read_is_refused(
    is_changed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_and_write(folder: Path) -> CheckpointConfig:
        checked = read_config(folder)
        if is_changed:
            change_config(folder)
        else:
            (folder / "config.json").write_bytes(checked.content)
        return checked

    write_tiny_llama(tmp_path)
    monkeypatch.setattr(worker, "read_config", read_and_write)
    if is_changed:
        with pytest.raises(CheckpointError, match=r"config\.json has changed during the load"):
            start(tmp_path)
        assert sorted(path.name for path in tmp_path.glob("*hearth-packed*")) == []
    else:
        leave_copy(tmp_path)


def test_a_copy_is_that_of_the_configuration_that_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another was there for a moment, of which there is a copy."""
    write_tiny_llama(tmp_path)
    before = (tmp_path / "config.json").read_bytes()
    change_config(tmp_path)
    leave_copy(tmp_path)
    after = (tmp_path / "config.json").read_bytes()

    def create_and_restore(*what: Any) -> CopyKeeper:
        (tmp_path / "config.json").write_bytes(after)
        keeper = create_keeper(*what)
        (tmp_path / "config.json").write_bytes(before)
        return keeper

    (tmp_path / "config.json").write_bytes(before)
    with monkeypatch.context() as patch:
        patch.setattr(worker, "create_keeper", create_and_restore)
        driver = start(tmp_path)
    assert not is_mapped(driver)
    find_copy(driver).wait()
    assert is_mapped(start(tmp_path))
    change_config(tmp_path)
    assert not is_mapped(start(tmp_path))  # the control


@pytest.mark.skipif(len(NAMES) < 2, reason="this CPU has one level")
def test_another_level_is_another_copy(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path)
    leave_copy(tmp_path, cpu_level=CpuLevel(NAMES[0]))
    assert is_mapped(start(tmp_path, cpu_level=CpuLevel(NAMES[0])))
    assert not is_mapped(start(tmp_path, cpu_level=CpuLevel(NAMES[1])))


def test_weights_that_are_to_be_compared_are_read(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path)
    note_digests(tmp_path)
    leave_copy(tmp_path)
    assert is_mapped(start(tmp_path))
    assert find_copy(start(tmp_path, check_weights=WeightCheck.ALWAYS)) is packed_writing.NO_COPY


def test_a_small_model_has_no_copy(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path)
    assert find_copy(start(tmp_path, packed_copy_bytes=64 << 20)) is packed_writing.NO_COPY
    assert not (tmp_path / COPY_FILE).exists()


class SmallPages(mmap.mmap):
    """What a kernel without large pages makes of being asked for some."""

    def madvise(self, option: int, *span: int) -> None:
        if option == mmap.MADV_HUGEPAGE:
            raise OSError(22, "Invalid argument")
        super().madvise(option, *span)


def test_a_copy_is_mapped_where_the_kernel_has_no_large_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tiny_llama(tmp_path)
    expected = leave_copy(tmp_path)
    monkeypatch.setattr("gpu_pool.weights.packed_file.mmap.mmap", SmallPages)
    driver = start(tmp_path)
    assert is_mapped(driver)
    assert ask(driver) == expected
