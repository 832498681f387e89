"""Files are read past the page cache where that goes, and right where it does not."""

import errno
import fcntl
import mmap
import os
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gpu_pool.large_pages import create_buffer
from gpu_pool.models.errors import CheckpointError
from gpu_pool.weights.direct_file import BLOCK_BYTES, DirectFile

CONTENT = os.urandom(3 * BLOCK_BYTES + 17)


def write(folder: Path) -> Path:
    path = folder / "weights"
    path.write_bytes(CONTENT)
    return path


def say_nothing_is_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks if the page cache has a block hears no: some systems keep what they wrote."""
    really_read = os.preadv

    def read(file: int, views: list[memoryview], offset: int, flags: int = 0) -> int:
        if flags:
            raise BlockingIOError
        return really_read(file, views, offset)

    monkeypatch.setattr(os, "preadv", read)


def read_all(file: DirectFile) -> bytes:
    buffer = create_buffer(4 * BLOCK_BYTES)
    file.read_into(memoryview(buffer), 0)
    return buffer[: len(CONTENT)]


@pytest.mark.parametrize("is_direct", [True, False])
def test_a_file_that_ends_inside_a_block_is_read_to_its_last_byte(
    tmp_path: Path, is_direct: bool
) -> None:
    with DirectFile(write(tmp_path), is_direct=is_direct) as file:
        assert read_all(file) == CONTENT


def test_a_file_system_that_refuses_to_open_is_read_through_the_cache_and_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, really_open = write(tmp_path), os.open
    say_nothing_is_cached(monkeypatch)

    def refuse(name: Any, flags: int, *rest: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no direct reads")
        return really_open(name, flags, *rest)

    monkeypatch.setattr(os, "open", refuse)
    with capture_logs() as lines, DirectFile(path) as file:
        assert not file.is_direct
        assert read_all(file) == CONTENT
    (line,) = lines
    assert "page cache" in line["event"]


def test_a_file_system_that_refuses_only_to_read_is_read_through_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really_read = os.preadv

    def refuse(file: int, views: list[memoryview], offset: int, flags: int = 0) -> int:
        if flags:
            raise BlockingIOError
        if fcntl.fcntl(file, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no direct reads")
        return really_read(file, views, offset)

    monkeypatch.setattr(os, "preadv", refuse)
    with DirectFile(write(tmp_path)) as file:
        assert read_all(file) == CONTENT
        assert not file.is_direct


def test_a_file_that_is_cut_while_it_is_open_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path)
    with DirectFile(path) as file:
        os.truncate(path, BLOCK_BYTES + 1)
        with pytest.raises(CheckpointError, match="was cut"):
            read_all(file)


def test_a_drive_that_fails_is_said_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_file: int, _views: list[memoryview], _offset: int, flags: int = 0) -> int:
        if flags:
            raise BlockingIOError
        raise OSError(errno.EIO, "Input/output error")

    with DirectFile(write(tmp_path)) as file:
        monkeypatch.setattr(os, "preadv", fail)
        with pytest.raises(CheckpointError, match="Input/output error"):
            read_all(file)


def test_a_file_is_taken_from_the_cache_only_where_the_cache_has_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, really_read = write(tmp_path), os.preadv
    cached = {0, BLOCK_BYTES, 2 * BLOCK_BYTES}

    def read(file: int, views: list[bytearray], offset: int, flags: int = 0) -> int:
        if flags and offset not in cached:
            raise BlockingIOError
        return really_read(file, views, offset)

    monkeypatch.setattr(os, "preadv", read)
    for is_whole in (True, False):
        with DirectFile(path) as file:
            assert file.is_direct is not is_whole
            assert read_all(file) == CONTENT
        cached.discard(BLOCK_BYTES)


def test_a_file_system_that_cannot_tell_what_is_cached_is_read_past_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really_read = os.preadv

    def read(file: int, views: list[bytearray], offset: int, flags: int = 0) -> int:
        if flags:
            raise OSError(errno.EOPNOTSUPP, "not here")
        return really_read(file, views, offset)

    monkeypatch.setattr(os, "preadv", read)
    with DirectFile(write(tmp_path)) as file:
        assert file.is_direct
        assert read_all(file) == CONTENT


def test_memory_that_is_not_there_is_refused_with_its_size() -> None:
    wanted = 1 << 56
    with pytest.raises(OSError, match="memory") as bare:  # the control: the system tells no size
        mmap.mmap(-1, wanted, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    assert f"{wanted:,}" not in str(bare.value)
    with pytest.raises(OSError, match=f"{wanted:,} bytes") as told:
        create_buffer(wanted)
    assert told.value.errno == errno.ENOMEM
