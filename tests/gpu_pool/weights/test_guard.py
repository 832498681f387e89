"""Weights that are not those that were added: found, named, and never computed with."""

import os
import shutil
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gpu_pool.compute_choice import WeightCheck
from gpu_pool.models.errors import CheckpointError
from gpu_pool.models.network import EncoderNetwork
from gpu_pool.weights import guard, revision
from gpu_pool.weights.config import read_config
from gpu_pool.weights.digests import DIGESTS_FILE, STAMP_FILE, read_digests
from gpu_pool.weights.guard import WeightGuard, note_digests
from gpu_pool.weights.header import read_header
from gpu_pool.weights.revision import RevisionUnderWay, compute_revision
from gpu_pool.worker.encoder_worker import create_encoder_executor
from gpu_pool.worker.model_loading import ModelLoader
from gpu_pool.worker.model_memory import CpuPlaces
from gpu_pool.worker.settings import WorkerSettings
from gpu_pool.worker.worker import create_executor
from tests.fixtures.encoder_checkpoint import write_encoder_checkpoint
from tests.fixtures.one_cpu import needs_cpus, one_cpu
from tests.gpu_pool.plan_driver import PlanDriver
from tests.gpu_pool.tiny_llama import write_tiny_llama

__all__ = ["one_cpu"]
WEIGHTS = "model.safetensors"
NAME = "model.layers.1.mlp.down_proj.weight"


def add(folder: Path, *, seed: int = 0, shard_size: str = "1GB") -> Path:
    """A small model whose digests are noted."""
    write_tiny_llama(folder, seed=seed, shard_size=shard_size)
    note_digests(folder)
    return folder


def load(folder: Path, check: WeightCheck = WeightCheck.FIRST) -> list[int]:
    """What the model says."""
    settings = WorkerSettings(model_dir=folder, num_threads=1, num_blocks=20, check_weights=check)
    driver = PlanDriver(create_executor(settings))
    return driver.generate([driver.add([1, 2, 3])], 6)[0]


def flip_bit(folder: Path) -> None:
    path = folder / WEIGHTS
    entry = read_header(path).tensors[NAME]
    with path.open("r+b") as file:
        file.seek(entry.offset + 1001)
        (byte,) = file.read(1)
        file.seek(entry.offset + 1001)
        file.write(bytes([byte ^ 0x40]))


def swap(one: Path, two: Path) -> None:
    """Exchanges the weights of two models."""
    one.rename(one.with_suffix(".tmp"))
    two.rename(one)
    one.with_suffix(".tmp").rename(two)


def test_a_revision_is_hashed_beside_the_load_and_the_same(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path)
    files = [tmp_path / "config.json", tmp_path / WEIGHTS]
    expected = compute_revision(files, 1)
    guard = WeightGuard(tmp_path, WeightCheck.FIRST)
    guard.begin_revision()
    assert guard.compute_revision() == expected
    flip_bit(tmp_path)
    anew = WeightGuard(tmp_path, WeightCheck.FIRST)
    assert anew.compute_revision() == compute_revision(files, 1) != expected


@pytest.mark.parametrize("is_swapped", [True, False])
def test_weights_that_are_swapped_before_they_are_hashed_have_no_revision(
    is_swapped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go = threading.Event()
    hash_piece = revision._hash_piece

    def wait_and_hash(path: Path, start: int) -> bytes:
        assert may_go.wait(timeout=60)
        return hash_piece(path, start)

    def join(parts: Iterator[Tensor], num_rows: int) -> Tensor:
        joined = torch.cat(list(parts))
        assert len(joined) == num_rows
        return joined

    write_tiny_llama(tmp_path / "one")
    write_tiny_llama(tmp_path / "two", seed=1)
    monkeypatch.setattr(revision, "_hash_piece", wait_and_hash)
    checked = read_config(tmp_path / "one")
    loader = ModelLoader(tmp_path / "one", checked.find_packed, torch.float32)
    loader.load_causal(checked.require_causal(), 64, join)
    if is_swapped:
        swap(tmp_path / "one" / WEIGHTS, tmp_path / "two" / WEIGHTS)
    may_go.set()
    if is_swapped:
        with pytest.raises(CheckpointError, match="changed during the load"):
            loader.compute_revision()
    else:
        files = [tmp_path / "one" / "config.json", tmp_path / "one" / WEIGHTS]
        assert loader.compute_revision() == compute_revision(files, 1)


def test_a_model_that_was_added_is_not_hashed_for_its_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[Path] = []
    hash_piece = revision._hash_piece

    def note_and_hash(path: Path, start: int) -> bytes:
        hashed.append(path)
        return hash_piece(path, start)

    add(tmp_path / "added")
    write_tiny_llama(tmp_path / "other")
    monkeypatch.setattr(revision, "_hash_piece", note_and_hash)
    load(tmp_path / "added")
    assert not hashed
    load(tmp_path / "other")
    assert sorted(hashed) == [tmp_path / "other" / name for name in ("config.json", WEIGHTS)]


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[RevisionUnderWay]:
    """All that has begun to be hashed."""
    begun: list[RevisionUnderWay] = []
    begin = WeightGuard._begin

    def begin_and_note(guard: WeightGuard) -> RevisionUnderWay:
        begun.append(begin(guard))
        return begun[-1]

    monkeypatch.setattr(WeightGuard, "_begin", begin_and_note)
    return begun


def test_a_load_that_fails_leaves_nobody_hashing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: list[RevisionUnderWay]
) -> None:
    monkeypatch.setattr(revision, "_PIECE_BYTES", 4096)
    write_tiny_llama(tmp_path)
    load(tmp_path)  # the control
    os.truncate(tmp_path / WEIGHTS, 500)
    with pytest.raises(CheckpointError):
        load(tmp_path)
    assert [under_way._pool._shutdown for under_way in begun] == [True, True]


@needs_cpus
@pytest.mark.usefixtures("one_cpu")
def test_as_many_threads_hash_as_the_process_may_use_cpus(
    tmp_path: Path, begun: list[RevisionUnderWay], monkeypatch: pytest.MonkeyPatch
) -> None:
    nums_threads: list[int] = []

    def note_and_compute(files: Iterable[Path], num_threads: int) -> str:
        nums_threads.append(num_threads)
        return compute_revision(files, num_threads)

    monkeypatch.setattr(guard, "compute_revision", note_and_compute)
    write_tiny_llama(tmp_path)
    load(tmp_path)
    note_digests(tmp_path)
    assert [begun[0]._pool._max_workers, *nums_threads] == [1, 1]


def test_a_start_that_fails_behind_its_load_leaves_nobody_hashing(
    tmp_path: Path, begun: list[RevisionUnderWay]
) -> None:
    write_tiny_llama(tmp_path)
    settings = WorkerSettings(model_dir=tmp_path, num_threads=1, num_blocks=1 << 50)
    with pytest.raises((OSError, OverflowError, ValueError)):  # no address space is so large
        create_executor(settings)
    assert [under_way._pool._shutdown for under_way in begun] == [True]


def test_an_encoders_start_that_fails_behind_its_load_leaves_nobody_hashing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: list[RevisionUnderWay]
) -> None:
    def refuse(*_: object) -> None:
        raise MemoryError

    write_encoder_checkpoint(tmp_path, "BertModel")
    checked = read_config(tmp_path)
    network = checked.network
    assert isinstance(network, EncoderNetwork)
    settings = WorkerSettings(model_dir=tmp_path, num_threads=1)
    create_encoder_executor(settings, checked, network)  # the control
    monkeypatch.setattr(CpuPlaces, "finish", refuse)
    with pytest.raises(MemoryError):
        create_encoder_executor(settings, checked, network)
    assert [under_way._pool._shutdown for under_way in begun] == [True, True]


@pytest.mark.parametrize("is_changed", [True, False])
def test_an_encoder_whose_configuration_changes_once_it_is_read_is_refused(
    is_changed: bool, tmp_path: Path
) -> None:
    write_encoder_checkpoint(tmp_path, "BertModel")
    checked = read_config(tmp_path)
    assert isinstance(checked.network, EncoderNetwork)
    (tmp_path / "config.json").write_bytes(checked.content + b"\n" * is_changed)
    settings = WorkerSettings(model_dir=tmp_path, num_threads=1)
    if is_changed:
        with pytest.raises(CheckpointError, match=r"config\.json has changed during the load"):
            create_encoder_executor(settings, checked, checked.network)
    else:
        create_encoder_executor(settings, checked, checked.network)


@pytest.mark.parametrize("check", [WeightCheck.FIRST, WeightCheck.ALWAYS])
def test_a_flipped_bit_is_found_and_its_tensor_named(tmp_path: Path, check: WeightCheck) -> None:
    add(tmp_path)
    load(tmp_path, check)
    flip_bit(tmp_path)
    with pytest.raises(CheckpointError, match=f"tensor `{NAME}` has other bytes"):
        load(tmp_path, check)
    load(tmp_path, WeightCheck.NEVER)  # the control: without the digests it would be computed with


def test_two_models_with_each_others_weights_are_both_refused(tmp_path: Path) -> None:
    one, two, other = (add(tmp_path / name, seed=seed) for seed, name in enumerate("abc"))
    expected = load(other)
    assert load(one) != load(two)
    swap(one / WEIGHTS, two / WEIGHTS)
    for folder in (one, two):
        with pytest.raises(CheckpointError, match="has other bytes"):
            load(folder)
    assert load(other) == expected
    swap(one / WEIGHTS, two / WEIGHTS)
    load(one)  # sound again


def test_exchanged_names_in_a_header_are_found_before_any_data_is_read(tmp_path: Path) -> None:
    add(tmp_path)
    path = tmp_path / WEIGHTS
    content = path.read_bytes()
    first, second = (f"layers.{layer}.mlp.down_proj.weight".encode() for layer in (0, 1))
    swapped = second.join(part.replace(second, first) for part in content.split(first))
    assert len(swapped) == len(content)
    path.write_bytes(swapped)
    with pytest.raises(CheckpointError, match="not the one that was added"):
        load(tmp_path)
    load(tmp_path, WeightCheck.NEVER)  # the control


@pytest.mark.parametrize("num_bytes", [3, 500, 40_000])
def test_a_cut_file_is_refused_with_and_without_digests(tmp_path: Path, num_bytes: int) -> None:
    add(tmp_path)
    os.truncate(tmp_path / WEIGHTS, num_bytes)
    for check in WeightCheck:
        with pytest.raises(CheckpointError, match=r"model\.safetensors: the file (ends|is cut)"):
            load(tmp_path, check)


def test_a_second_load_believes_what_was_found_sound_until_a_file_is_touched(
    tmp_path: Path,
) -> None:
    add(tmp_path, shard_size="60KB")
    assert WeightGuard(tmp_path, WeightCheck.FIRST).expected is not None
    load(tmp_path)
    assert WeightGuard(tmp_path, WeightCheck.FIRST).expected is None
    assert WeightGuard(tmp_path, WeightCheck.ALWAYS).expected is not None
    shard = sorted(tmp_path.glob("*.safetensors"))[2]
    status = shard.stat()
    shard.write_bytes(shard.read_bytes())
    os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns))  # its times look as before
    assert WeightGuard(tmp_path, WeightCheck.FIRST).expected is not None


def test_a_copy_is_compared_anew(tmp_path: Path) -> None:
    add(tmp_path / "one")
    load(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    assert (tmp_path / "two" / STAMP_FILE).exists()
    assert WeightGuard(tmp_path / "two", WeightCheck.FIRST).expected is not None


def test_the_revision_is_the_same_whether_it_was_noted_or_is_computed(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path)
    files = [tmp_path / "config.json", tmp_path / WEIGHTS]
    assert WeightGuard(tmp_path, WeightCheck.FIRST).compute_revision() == compute_revision(files, 1)
    note_digests(tmp_path)
    assert WeightGuard(tmp_path, WeightCheck.NEVER).compute_revision() == compute_revision(files, 1)
    (tmp_path / "config.json").write_bytes((tmp_path / "config.json").read_bytes() + b" ")
    assert WeightGuard(tmp_path, WeightCheck.NEVER).compute_revision() == compute_revision(files, 1)


def test_notes_that_cannot_be_read_are_an_error_not_a_pass(tmp_path: Path) -> None:
    add(tmp_path)
    (tmp_path / DIGESTS_FILE).write_text("{")
    with pytest.raises(CheckpointError, match=DIGESTS_FILE):
        load(tmp_path)


def test_a_folder_that_cannot_be_written_is_compared_each_time(tmp_path: Path) -> None:
    add(tmp_path)
    (tmp_path / STAMP_FILE).mkdir()  # nothing can take its place
    load(tmp_path)
    assert WeightGuard(tmp_path, WeightCheck.FIRST).expected is not None


def test_every_tensor_of_every_file_is_noted(tmp_path: Path) -> None:
    add(tmp_path, shard_size="60KB")
    noted = read_digests(tmp_path)
    assert noted is not None
    for path in tmp_path.glob("*.safetensors"):
        assert set(noted.files[path.name].tensors) == set(read_header(path).tensors)
