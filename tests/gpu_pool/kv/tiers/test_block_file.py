"""Sealed blocks go past the page cache where a file system has that, and are whole where not."""

import errno
import mmap
import os
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gpu_pool.kv.tiers import block_file
from gpu_pool.kv.tiers.block_file import PAGE_BYTES, create_buffer, read_file, write_file

SIZE = 5 * PAGE_BYTES


def fill_buffer() -> memoryview:
    """Pages with something in them."""
    pages = memoryview(create_buffer(SIZE))
    pages[:] = Random(1).randbytes(SIZE)
    return pages


def come_and_go(path: Path) -> bool:
    """True when what is read is what was written."""
    written, target = fill_buffer(), memoryview(create_buffer(SIZE))
    write_file(path, written)
    return read_file(path, target) == SIZE and target == written


def listen(monkeypatch: pytest.MonkeyPatch, *, refuses: bool) -> list[tuple[str, bool]]:
    """How files are opened from here on: the suffix, and whether past the page cache."""
    opened, really_open = list[tuple[str, bool]](), os.open

    def note(path: Any, flags: int, *rest: Any) -> int:
        is_direct = bool(flags & os.O_DIRECT)
        opened.append((Path(path).suffix, is_direct))
        if is_direct and refuses:
            raise OSError(errno.EINVAL, "no direct access")
        return really_open(path, flags & ~os.O_DIRECT, *rest)  # whatever tests' drives can do

    monkeypatch.setattr(os, "open", note)
    return opened


def test_a_block_goes_past_the_page_cache_both_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = listen(monkeypatch, refuses=False)
    assert come_and_go(tmp_path / "block.kv")
    assert opened == [(".part", True), (".kv", True)]


def test_where_a_file_system_refuses_that_the_block_comes_through_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = listen(monkeypatch, refuses=True)
    assert come_and_go(tmp_path / "block.kv")
    assert opened == [(".part", True), (".part", False), (".kv", True), (".kv", False)]


def count_cached_pages(path: Path) -> int:
    """Pages of a file that the system keeps in memory: those that are read without waiting."""
    num_cached = 0
    file = os.open(path, os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)  # a look brings none beside its own
    try:
        for offset in range(0, SIZE, PAGE_BYTES):
            with suppress(BlockingIOError):
                num_cached += os.preadv(file, [bytearray(1)], offset, os.RWF_NOWAIT)
    finally:
        os.close(file)
    return num_cached


def can_be_direct(folder: Path) -> bool:
    """False for file systems that have no drive, or no direct access to it."""
    path = folder / "try"
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o600)
    except OSError:
        return False
    try:
        os.write(file, mmap.mmap(-1, SIZE))
    finally:
        os.close(file)
    return count_cached_pages(path) == 0


@pytest.mark.parametrize("is_direct", [True, False])
def test_the_page_cache_keeps_nothing_of_a_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_direct: bool
) -> None:
    """The control writes and reads as files are by default."""
    if not can_be_direct(tmp_path):
        pytest.skip("NOT RUN: the tests' folder has no direct access")
    if not is_direct:
        monkeypatch.setattr(block_file, "_DIRECT", 0)
    path = tmp_path / "block.kv"
    assert come_and_go(path)
    assert (count_cached_pages(path) == 0) is is_direct
