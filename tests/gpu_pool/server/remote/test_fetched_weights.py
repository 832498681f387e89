"""Weights of one folder: fetched by processes that are killed, and by two at once."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from contracts.errors import UnsupportedFeature
from gpu_pool.server.remote.download import FetchRefusedError
from gpu_pool.server.remote.fetched_weights import OwnWeights, WeightFiles, find_weights
from gpu_pool.weight_origin import ORIGIN_FILE, WeightOrigin, read_origin
from gpu_pool.weights.packed_file import COPY_FILE, UNFINISHED_FILE
from tests.fixtures.mirror import Mirror, serve_mirror
from tests.fixtures.node_process import wait_until
from tests.fixtures.remote_model import describe_files, write_remote_model

FILES = {
    "model-00001-of-00002.safetensors": bytes(range(256)) * 8000,
    "model-00002-of-00002.safetensors": bytes(range(255)) * 8000,
}
SIZE = sum(map(len, FILES.values()))


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    with serve_mirror(dict(FILES)) as mirror:
        yield mirror


@pytest.fixture
def folder(tmp_path: Path, mirror: Mirror) -> Path:
    whole = tmp_path / "whole"
    whole.mkdir()
    for name, content in FILES.items():
        (whole / name).write_bytes(content)
    return write_remote_model(tmp_path / "model", whole, mirror.url)


def start_fetching(folder: Path) -> "subprocess.Popen[bytes]":
    command = (sys.executable, "-m", "tests.gpu_pool.server.remote.fetching_process", str(folder))
    return subprocess.Popen(command)


def read_all(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}


async def test_weights_are_fetched_and_given_up(folder: Path, mirror: Mirror) -> None:
    files = find_weights(folder, None)
    assert not files.are_here
    assert (files.disk_bytes, files.missing_bytes) == (0, SIZE)
    await files.fetch()
    assert files.are_here
    assert (files.disk_bytes, files.missing_bytes) == (SIZE, 0)
    assert read_all(folder) == FILES
    assert find_weights(folder, None).are_here  # as the next start finds it
    assert mirror.num_sent == SIZE


async def test_packed_copies_take_room_and_go_with_the_weights(folder: Path) -> None:
    files = find_weights(folder, None)
    (folder / COPY_FILE).write_bytes(b"of what was here before")
    assert (files.disk_bytes, files.missing_bytes) == (0, SIZE)  # it makes nothing else possible
    await files.fetch()
    assert not (folder / COPY_FILE).exists()
    (folder / COPY_FILE).write_bytes(bytes(5000))
    (folder / UNFINISHED_FILE).write_bytes(bytes(300))
    assert (files.disk_bytes, files.missing_bytes) == (SIZE + 5300, 0)
    (folder / "tokenizer.json").touch()
    assert files.drop()
    assert not (folder / COPY_FILE).exists()
    assert not (folder / UNFINISHED_FILE).exists()
    assert (files.disk_bytes, files.missing_bytes) == (0, SIZE)
    assert (folder / "tokenizer.json").exists()  # the control: what was not fetched stays


async def test_a_model_without_an_origin_is_never_removed(tmp_path: Path) -> None:
    files = find_weights(tmp_path, None)
    assert isinstance(files, OwnWeights)
    assert not files.drop()


@pytest.mark.slow
async def test_processes_killed_in_the_middle_go_on_where_they_stopped(
    folder: Path, mirror: Mirror
) -> None:
    mirror.bytes_per_s = 2e6
    for share in (0.2, 0.45, 0.7):
        process = start_fetching(folder)
        await wait_until(lambda share=share: find_present(folder) > share * SIZE, timeout_s=60)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert not find_weights(folder, None).are_here  # the control: they were in the middle
    sent = mirror.num_sent
    mirror.bytes_per_s = 0
    last = start_fetching(folder)
    assert last.wait(60) == 0
    assert read_all(folder) == FILES
    assert mirror.num_sent - sent <= 0.4 * SIZE
    assert mirror.num_sent < 1.5 * SIZE  # what a killed process had in its buffers comes again


@pytest.mark.slow
async def test_two_nodes_at_once_fetch_once(folder: Path, mirror: Mirror) -> None:
    mirror.bytes_per_s = 8e6
    both = [start_fetching(folder) for _ in range(2)]
    assert [await asyncio.to_thread(process.wait, 60) for process in both] == [0, 0]
    assert read_all(folder) == FILES
    assert mirror.num_sent == SIZE


async def test_what_another_node_relies_on_is_not_removed(folder: Path) -> None:
    first, second = find_weights(folder, None), find_weights(folder, None)
    await first.fetch()
    other = find_weights(folder, None)
    assert other.are_here
    assert not first.drop()
    assert first.are_here
    assert read_all(folder) == FILES
    forget(other)
    assert first.drop()
    assert (first.are_here, first.disk_bytes, read_all(folder)) == (False, 0, {})
    assert not second.are_here
    await second.fetch()
    assert second.are_here


async def test_damaged_weights_are_refused_and_a_node_does_not_count_on_them(
    folder: Path, mirror: Mirror
) -> None:
    name = next(iter(FILES))
    mirror.files[name] = b"!" + FILES[name][1:]
    files = find_weights(folder, None)
    with pytest.raises(FetchRefusedError, match="another SHA-256"):
        await files.fetch()
    assert not files.are_here
    assert read_all(folder) == {}
    mirror.files[name] = FILES[name]
    await files.fetch()
    assert files.are_here


async def test_a_file_of_another_size_is_fetched_again(folder: Path) -> None:
    name = next(iter(FILES))
    first = find_weights(folder, None)
    await first.fetch()
    (folder / name).write_bytes(FILES[name][:-1])
    files = find_weights(folder, None)
    assert not files.are_here
    with pytest.raises(FetchRefusedError, match="Another node relies"):
        await files.fetch()
    forget(first)
    await files.fetch()
    assert read_all(folder) == FILES


def rename(document: dict[str, Any], name: str) -> None:
    document["files"][0]["name"] = name


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: rename(d, "../../etc/model.safetensors"), "not the plain name"),
        (lambda d: rename(d, "/model.safetensors"), "not the plain name"),
        (lambda d: rename(d, ".hidden.safetensors"), "not the plain name"),
        (lambda d: rename(d, "a/b.safetensors"), "not the plain name"),
        (lambda d: rename(d, "model.bin"), "not the plain name of a .safetensors"),
        (lambda d: rename(d, d["files"][1]["name"]), "listed twice"),
        (lambda d: d.update(url="file:///etc"), "not an address"),
        (lambda d: d.update(url="https://me:secret@mirror/x"), "has a password"),
        (lambda d: d.update(version=2), "version 2 is unknown"),
        (lambda d: d.update(files=[]), "length >= 1"),
        (lambda d: d["files"][0].update(sha256="0" * 63), "matching regex"),
        (lambda d: d["files"][0].update(num_bytes=0), ">= 1"),
    ],
)
def test_a_note_that_leads_elsewhere_is_refused(
    folder: Path, change: Callable[[dict[str, Any]], None], said: str
) -> None:
    path = folder / ORIGIN_FILE
    document = msgspec.json.decode(path.read_bytes())
    assert read_origin(folder) is not None  # the control: it is read as it is written
    change(document)
    path.write_bytes(msgspec.json.encode(document))
    with pytest.raises(UnsupportedFeature, match=said):
        find_weights(folder, None)


def test_an_address_is_joined_with_names_only(folder: Path) -> None:
    files = describe_files(folder.parent / "whole")
    origin = WeightOrigin(url="https://mirror.example/models/", files=files)
    assert origin.locate(files[0]) == f"https://mirror.example/models/{files[0].name}"


def find_present(folder: Path) -> int:
    return find_weights(folder, None).disk_bytes


def forget(files: WeightFiles) -> None:
    """As if its node had ended."""
    files._unlock()  # type: ignore[attr-defined]
