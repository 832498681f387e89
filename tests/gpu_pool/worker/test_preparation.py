"""What `hearth models add` leaves for the first start of a model on a CPU."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts.ids import ModelName
from gpu_pool.load_progress import LoadProgress, NobodyListens
from gpu_pool.model_store import ModelStore
from gpu_pool.models.errors import CheckpointError
from gpu_pool.weights import packed_writing
from gpu_pool.weights.config import CheckpointConfig, read_config
from gpu_pool.weights.guard import note_digests
from gpu_pool.weights.packed_copy import PackedCopy
from gpu_pool.weights.packed_file import COPY_FILE, UNFINISHED_FILE
from gpu_pool.weights.packed_writing import MappedCopy, PackedWriting
from gpu_pool.worker import preparation
from gpu_pool.worker.preparation import Prepared, prepare_copy
from tests.gpu_pool.kernels.cpu.native_levels import NAMES
from tests.gpu_pool.tiny_llama import write_tiny_llama
from tests.gpu_pool.worker.packed_starts import all_closed, ask, find_copy, start

__all__ = ["all_closed"]
pytestmark = pytest.mark.skipif(not NAMES, reason="there are no native kernels here")
NUM_THREADS = 2


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    """Both a load and a start set the process's threads: they are put back."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    """A model in bf16 as it lies once it was added."""
    write_tiny_llama(tmp_path, dtype=torch.bfloat16)
    note_digests(tmp_path)
    return tmp_path


def prepare(folder: Path) -> Prepared:
    return prepare_copy(folder, NobodyListens(), NUM_THREADS, least_bytes=0)


def test_a_first_start_maps_what_was_prepared(model_dir: Path) -> None:
    assert prepare(model_dir) is Prepared.YES
    driver = start(model_dir)
    copy = find_copy(driver)
    assert isinstance(copy, MappedCopy)
    assert copy.is_there
    prepared = ask(driver)
    # The control: without the copy a start packs, and says the same.
    (model_dir / COPY_FILE).unlink()
    unprepared = start(model_dir)
    assert isinstance(find_copy(unprepared), PackedWriting)
    assert ask(unprepared) == prepared


def test_weights_that_change_after_they_were_prepared_are_refused(model_dir: Path) -> None:
    assert prepare(model_dir) is Prepared.YES
    weights = bytearray((model_dir / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (model_dir / "model.safetensors").write_bytes(weights)
    with pytest.raises(CheckpointError, match="has other bytes than when"):
        start(model_dir)


@pytest.mark.parametrize("is_changed", [True, False])
def test_a_configuration_that_changes_meanwhile_is_not_prepared(
    is_changed: bool, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_and_write(folder: Path) -> CheckpointConfig:
        checked = read_config(folder)
        (folder / "config.json").write_bytes(checked.content + b"\n" * is_changed)
        return checked

    monkeypatch.setattr(preparation, "read_config", read_and_write)
    if is_changed:
        with pytest.raises(CheckpointError, match=r"config\.json has changed"):
            prepare(model_dir)
    else:
        assert prepare(model_dir) is Prepared.YES
    assert (model_dir / COPY_FILE).exists() is not is_changed


def test_it_takes_the_threads_that_it_is_given(model_dir: Path) -> None:
    torch.set_num_threads(1)
    assert prepare(model_dir) is Prepared.YES
    assert torch.get_num_threads() == NUM_THREADS


def test_whoever_asks_hears_how_far_it_is(model_dir: Path) -> None:
    told: list[tuple[int, int]] = []
    listener = LoadProgress(lambda done, total: told.append((done, total)), lambda: len(told) * 2.0)
    prepare_copy(model_dir, listener, NUM_THREADS, least_bytes=0)
    assert told == sorted(told)
    assert told[-1][0] > 0


@pytest.mark.parametrize("reason", ["it is small", "torch computes it", "a GPU computes it"])
def test_nothing_is_prepared_that_no_start_looks_for(
    reason: str, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason == "torch computes it":
        write_tiny_llama(model_dir)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: reason == "a GPU computes it")
    least_bytes = {"least_bytes": 0} if reason != "it is small" else {}
    assert (
        prepare_copy(model_dir, NobodyListens(), NUM_THREADS, **least_bytes) is Prepared.NOT_NEEDED
    )
    assert not (model_dir / COPY_FILE).exists()


def test_a_model_larger_than_the_memory_is_left_alone(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparation, "read_free_bytes", lambda: 1 << 16)
    assert prepare(model_dir) is Prepared.NO_MEMORY
    assert not (model_dir / COPY_FILE).exists()
    monkeypatch.setattr(preparation, "read_free_bytes", lambda: 1 << 30)
    assert prepare(model_dir) is Prepared.YES


def test_a_folder_that_others_can_write_gets_no_copy(model_dir: Path) -> None:
    model_dir.chmod(0o777)
    assert prepare(model_dir) is Prepared.NOT_TAKEN
    assert not (model_dir / COPY_FILE).exists()
    assert not (model_dir / UNFINISHED_FILE).exists()
    model_dir.chmod(0o755)
    assert prepare(model_dir) is Prepared.YES


def test_in_a_folder_that_others_can_write_nothing_that_is_there_is_written_over(
    model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """They may have given a file of ours the name of what a killed writer has left."""
    kept = tmp_path_factory.mktemp("elsewhere") / "kept"
    kept.write_bytes(b"not to be lost")
    model_dir.chmod(0o777)
    (model_dir / UNFINISHED_FILE).hardlink_to(kept)
    assert prepare(model_dir) is Prepared.NOT_TAKEN
    assert kept.read_bytes() == b"not to be lost"


@pytest.mark.parametrize("is_whole", [False, True], ids=["while it is written", "when it is whole"])
def test_a_model_that_takes_anothers_place_meanwhile_keeps_its_own_copy(
    is_whole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is added, prepared, removed and added again under one name, all at once."""
    store, name = ModelStore(tmp_path / "store"), ModelName("@me/small")
    write_tiny_llama(tmp_path / "source", dtype=torch.bfloat16)
    is_second_under_way, has_first_ended = threading.Event(), threading.Event()
    write, is_current = packed_writing.write_contents, PackedCopy.is_current

    def add() -> Path:
        source = tmp_path / "source"
        return store.add_model(name, source, note_digests=note_digests, tokenizer=b"{}").path

    def prepare_second() -> Prepared:
        return prepare(add())

    with ThreadPoolExecutor(1) as pool:
        second: list[Future[Prepared]] = []

        def take_its_place() -> None:
            store.remove_model(name)
            second.append(pool.submit(prepare_second))
            assert is_second_under_way.wait(60)

        def write_then_wait(*told: Any) -> None:
            write(*told)
            if second:
                is_second_under_way.set()
                assert has_first_ended.wait(60)
            elif not is_whole:
                take_its_place()

        def look_then_wait(copy: PackedCopy) -> bool:
            found = is_current(copy)
            if not second and is_whole and copy.path.parent == folder:
                take_its_place()
            return found

        monkeypatch.setattr(packed_writing, "write_contents", write_then_wait)
        monkeypatch.setattr(PackedCopy, "is_current", look_then_wait)
        folder = add()
        assert prepare(folder) is Prepared.NOT_TAKEN
        has_first_ended.set()
        assert second[0].result(60) is Prepared.YES
    assert isinstance(find_copy(start(folder)), MappedCopy)
    assert not (folder / UNFINISHED_FILE).exists()


def test_who_loses_patience_leaves_nothing_half_written(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()

    def go_on(_file: int, _memories: Any, in_turn: Callable[[Callable[[], str]], str]) -> None:
        begun.set()
        while True:
            in_turn(lambda: "")

    def lose_patience(writing: PackedWriting) -> None:
        writing._is_awaited.set()
        assert begun.wait(timeout=60)
        assert (model_dir / UNFINISHED_FILE).exists()  # the control
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(packed_writing, "write_pieces", go_on)
        patch.setattr(PackedWriting, "wait", lose_patience)
        with pytest.raises(KeyboardInterrupt):
            prepare(model_dir)
    assert not (model_dir / UNFINISHED_FILE).exists()
    assert not (model_dir / COPY_FILE).exists()
    assert prepare(model_dir) is Prepared.YES
