"""Starts from the packed copy of a model's weights: the same bits, and never those of others."""

import mmap
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from gpu_pool.compute_choice import CpuLevel, DtypeChoice, WeightCheck
from gpu_pool.lull import Lull
from gpu_pool.models.errors import CheckpointError
from gpu_pool.plan import ForwardResult
from gpu_pool.runner.model_runner import StepUnderWay
from gpu_pool.weights import packed_writing
from gpu_pool.weights.config import CheckpointConfig, read_config
from gpu_pool.weights.guard import note_digests
from gpu_pool.weights.packed_file import COPY_FILE, UNFINISHED_FILE
from gpu_pool.weights.packed_writing import MappedCopy, PackedWriting
from gpu_pool.weights.tensor_search import find_tensors
from gpu_pool.worker import model_memory, worker
from gpu_pool.worker.packed_loading import CopyKeeper, create_keeper
from gpu_pool.worker.settings import WorkerSettings
from gpu_pool.worker.worker import create_executor
from tests.gpu_pool.kernels.cpu.native_levels import NAMES, one_thread
from tests.gpu_pool.models.family_check import record_logits
from tests.gpu_pool.models.family_checkpoint import create_prompt, write_checkpoint
from tests.gpu_pool.models.test_listings import FAMILIES
from tests.gpu_pool.plan_driver import PlanDriver
from tests.gpu_pool.tiny_llama import write_tiny_llama

__all__ = ["one_thread"]  # an executor sets the process's threads: they are put back
pytestmark = pytest.mark.skipif(not NAMES, reason="there are no native kernels here")
VARIANTS = {
    f"{family}: {name}": variant
    for family, (variants, _) in FAMILIES.items()
    for name, variant in variants.items()
}
PROMPT = [1 + i % 200 for i in range(40)]


def start(folder: Path, **changes: Any) -> PlanDriver:
    """A model in bf16 whose copy is kept, however small it is."""
    fields: dict[str, Any] = {
        "model_dir": folder,
        "dtype": DtypeChoice.BFLOAT16,
        "num_threads": 1,
        "num_blocks": 80,
        "packed_copy_bytes": 0,
    }
    return PlanDriver(create_executor(WorkerSettings(**(fields | changes))))


def find_copy(driver: PlanDriver) -> Any:
    executor: Any = driver.executor
    return executor._memory._copy


def is_mapped(driver: PlanDriver) -> bool:
    copy = find_copy(driver)
    return isinstance(copy, MappedCopy) and copy.span.num_bytes > 0


def leave_copy(folder: Path, **changes: Any) -> list[int]:
    """What the model says at a first start, whose copy is there afterwards."""
    driver = start(folder, **changes)
    writing = find_copy(driver)
    assert isinstance(writing, PackedWriting)
    writing.wait()
    assert (folder / COPY_FILE).is_file()
    return ask(driver)


def ask(driver: PlanDriver) -> list[int]:
    return driver.generate([driver.add(PROMPT)], 6)[0]


def say_anew(folder: Path) -> list[int]:
    """What the model says without any copy."""
    return ask(start(folder, packed_copy_bytes=None))


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


def test_what_a_killed_writer_has_left_is_written_over(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path)
    (tmp_path / UNFINISHED_FILE).write_bytes(b"half" * 1_000_000)
    leave_copy(tmp_path)
    assert not (tmp_path / UNFINISHED_FILE).exists()
    assert is_mapped(start(tmp_path))


def test_nothing_is_written_beside_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tiny_llama(tmp_path)
    monkeypatch.setattr(model_memory, "Lull", partial(Lull, quiet_s=0.01))
    has_begun, may_go_on = threading.Event(), threading.Event()
    write = packed_writing.write_pieces

    def wait_then_write(*told: Any) -> Any:
        has_begun.set()
        assert may_go_on.wait(20)
        return write(*told)

    monkeypatch.setattr(packed_writing, "write_pieces", wait_then_write)
    driver = start(tmp_path)
    writing, runner = find_copy(driver), cast(Any, driver.executor)._runner
    finish = runner.finish

    def look_and_finish(step: StepUnderWay) -> ForwardResult:
        may_go_on.set()
        writing._thread.join(0.2)
        assert not (tmp_path / COPY_FILE).exists()
        return finish(step)

    monkeypatch.setattr(runner, "finish", look_and_finish)
    assert has_begun.wait(20)
    driver.step([(driver.add(PROMPT), len(PROMPT))])
    writing._thread.join(20)
    assert (tmp_path / COPY_FILE).exists()


def test_two_writers_do_not_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tiny_llama(tmp_path)
    is_second_through = threading.Event()
    write = packed_writing.write_pieces

    def wait_then_write(*told: Any) -> Any:
        assert is_second_through.wait(20)
        return write(*told)

    monkeypatch.setattr(packed_writing, "write_pieces", wait_then_write)
    first = start(tmp_path)
    while not (tmp_path / UNFINISHED_FILE).exists():
        pass
    find_copy(start(tmp_path)).wait()
    assert not (tmp_path / COPY_FILE).exists()  # the second has left it to the first
    is_second_through.set()
    find_copy(first).wait()
    assert is_mapped(start(tmp_path))


def test_a_model_that_sleeps_before_its_copy_is_written_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory that has left the process reads as zeros."""
    write_tiny_llama(tmp_path)
    is_asleep = threading.Event()
    write = packed_writing.write_pieces

    def wait_then_write(*told: Any) -> Any:
        assert is_asleep.wait(20)
        return write(*told)

    monkeypatch.setattr(packed_writing, "write_pieces", wait_then_write)
    driver = start(tmp_path)
    writing = find_copy(driver)
    driver.executor.sleep()
    is_asleep.set()
    writing.wait()
    assert sorted(path.name for path in tmp_path.glob("*hearth-packed*")) == []
    driver.executor.wake()
    assert ask(PlanDriver(driver.executor)) == say_anew(tmp_path)


def test_a_full_drive_leaves_no_copy_and_no_half_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tiny_llama(tmp_path)

    def refuse(*told: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(packed_writing, "write_contents", refuse)
    driver = start(tmp_path)
    find_copy(driver).wait()
    assert sorted(path.name for path in tmp_path.glob("*hearth-packed*")) == []
    assert ask(driver) == say_anew(tmp_path)


def measure_copy(folder: Path) -> int:
    return (folder / COPY_FILE).stat().st_size


def test_a_copy_that_has_no_room_in_the_budget_is_not_written(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path)
    leave_copy(tmp_path)
    num_bytes = measure_copy(tmp_path)
    (tmp_path / COPY_FILE).unlink()
    driver = start(tmp_path, copy_room_bytes=num_bytes - 1)
    find_copy(driver).wait()
    assert sorted(path.name for path in tmp_path.glob("*hearth-packed*")) == []
    assert ask(driver) == say_anew(tmp_path)
    leave_copy(tmp_path, copy_room_bytes=num_bytes + (2 << 20))  # the control
    assert measure_copy(tmp_path) == num_bytes


def test_an_old_copy_leaves_where_both_have_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tiny_llama(tmp_path)
    old = tmp_path / COPY_FILE
    seen: list[bool] = []
    write = packed_writing.write_pieces

    def look_and_write(*told: Any) -> Any:
        seen.append(old.exists())
        return write(*told)

    monkeypatch.setattr(packed_writing, "write_pieces", look_and_write)
    for room_bytes in (3 << 20, 40 << 20):
        old.write_bytes(bytes(2 << 20))  # of something else
        leave_copy(tmp_path, copy_room_bytes=room_bytes)
        assert is_mapped(start(tmp_path))
    assert seen == [False, True]


def test_a_checkpoint_that_changes_while_its_copy_is_written_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tiny_llama(tmp_path)
    write = packed_writing.write_contents

    def touch_and_write(*told: Any) -> Any:
        (tmp_path / "model.safetensors").touch()
        write(*told)

    monkeypatch.setattr(packed_writing, "write_contents", touch_and_write)
    find_copy(start(tmp_path)).wait()
    assert not (tmp_path / COPY_FILE).exists()


def test_a_checkpoint_that_is_removed_while_its_copy_is_written_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer says so, instead of falling over it: pytest fails for what a thread throws."""
    write_tiny_llama(tmp_path)
    write = packed_writing.write_contents

    def write_and_remove(*told: Any) -> Any:
        write(*told)
        (tmp_path / "model.safetensors").unlink()

    monkeypatch.setattr(packed_writing, "write_contents", write_and_remove)
    driver = start(tmp_path)
    find_copy(driver).wait()
    assert sorted(path.name for path in tmp_path.glob("*hearth-packed*")) == []
    assert find_copy(driver)._record is None  # nor does it hold what it was to write
    assert len(ask(driver)) == 6


def test_a_process_that_ends_while_the_copy_is_written_leaves_no_half_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tiny_llama(tmp_path)
    has_begun, is_ending = threading.Event(), threading.Event()
    write = packed_writing.write_pieces

    def write_slowly(*told: Any) -> Any:
        has_begun.set()
        assert is_ending.wait(20)
        time.sleep(0.2)
        return write(*told)

    monkeypatch.setattr(packed_writing, "write_pieces", write_slowly)
    driver = start(tmp_path)
    assert has_begun.wait(20)
    assert (tmp_path / UNFINISHED_FILE).exists()
    is_ending.set()
    driver.executor.close()
    assert sorted(path.name for path in tmp_path.glob("*hearth-packed*")) == []


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
