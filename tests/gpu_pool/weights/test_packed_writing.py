"""What a start leaves of its weights, packed: a whole copy or none, and nothing beside a step."""

import threading
import time
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from gpu_pool.lull import Lull
from gpu_pool.plan import ForwardResult
from gpu_pool.runner.model_runner import StepUnderWay
from gpu_pool.weights import packed_writing
from gpu_pool.weights.packed_file import COPY_FILE, UNFINISHED_FILE
from gpu_pool.worker import model_memory
from tests.gpu_pool.kernels.cpu.native_levels import NAMES, one_thread
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
