"""Where libraries come from: built once, never loaded when torn, never from a folder of others."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_pool.kernels.cpu import build as builder
from gpu_pool.kernels.cpu.build import (
    NativeUnavailableError,
    find_library,
    get_cache_folder,
    is_whole,
)
from gpu_pool.kernels.cpu.levels import LEVELS, list_levels, read_cpu_flags
from gpu_pool.kernels.cpu.library import load_kernels
from tests.gpu_pool.kernels.cpu.native_levels import NAMES

needs_kernels = pytest.mark.skipif(not NAMES, reason="native kernels are for x86-64 Linux")
PLAIN = LEVELS[-1]
FIND = """
import sys, pathlib
from gpu_pool.kernels.cpu.build import find_library
from gpu_pool.kernels.cpu.levels import LEVELS
path = find_library(LEVELS[-1], pathlib.Path(sys.argv[1]))
print(path.stat().st_ino)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that three processes asked for at once, in a folder that was not there."""
    folder = tmp_path_factory.mktemp("cache") / "kernels"
    command = [sys.executable, "-c", FIND, str(folder)]
    found = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    inodes = {process.communicate(timeout=110)[0].strip() for process in found}
    assert [process.returncode for process in found] == [0, 0, 0]
    (library,) = folder.glob("*.so")
    # Whoever came second found what the first had put there, and nobody replaced it.
    assert inodes == {str(library.stat().st_ino)}
    assert not list(folder.glob("build-*"))
    return library


@needs_kernels
def test_a_library_built_by_one_of_several_processes_is_found_by_all(built: Path) -> None:
    before = built.stat()
    assert is_whole(built)
    assert find_library(PLAIN, built.parent) == built
    assert built.stat().st_mtime_ns == before.st_mtime_ns
    assert load_kernels(built.parent, PLAIN).level is PLAIN


@needs_kernels
def test_a_library_that_is_there_is_found_where_nothing_can_be_written(
    built: Path, tmp_path: Path
) -> None:
    tmp_path.chmod(0o700)
    shutil.copy(built, tmp_path)
    (tmp_path / f"{built.name}.lock").mkdir()  # root, who may write everywhere, cannot lock it
    assert find_library(PLAIN, tmp_path) == tmp_path / built.name
    (tmp_path / built.name).unlink()
    with pytest.raises(NativeUnavailableError, match="cannot be used"):  # the control
        find_library(PLAIN, tmp_path)


@needs_kernels
@pytest.mark.parametrize("damage", ["cut", "altered", "emptied"])
def test_a_damaged_library_is_built_anew(
    built: Path, tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = built.read_bytes()
    torn = {
        "cut": content[: len(content) // 2],
        "altered": content[:5000] + bytes([content[5000] ^ 1]) + content[5001:],
        "emptied": b"",
    }
    folder = tmp_path / "kernels"
    folder.mkdir(mode=0o700)
    (folder / built.name).write_bytes(torn[damage])
    rebuilt: list[Path] = []

    def copy(level: object, path: Path) -> None:
        rebuilt.append(path)
        path.write_bytes(content)

    monkeypatch.setattr(builder, "build", copy)  # compiling is not what is looked at here
    assert find_library(PLAIN, folder).read_bytes() == content
    assert rebuilt == [folder / built.name]
    find_library(PLAIN, folder)  # the control: a whole one stays
    assert len(rebuilt) == 1


@needs_kernels
def test_a_library_of_the_installation_is_readable_by_other_users(built: Path) -> None:
    """The image builds as root what its node loads as a user of its own."""
    assert built.stat().st_mode & 0o444 == 0o444


def test_what_cannot_be_read_is_not_there(tmp_path: Path) -> None:
    assert not is_whole(tmp_path)


def test_without_a_compiler_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NativeUnavailableError, match=r"no C\+\+ compiler"):
        find_library(PLAIN, tmp_path / "kernels")


def test_a_failing_compiler_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "g++"
    compiler.write_text("#!/bin/sh\necho 'unrecognized option -mamx-tile' >&2\nexit 1\n")
    compiler.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.defpath}")
    with pytest.raises(NativeUnavailableError, match="unrecognized option -mamx-tile"):
        find_library(PLAIN, tmp_path / "kernels")
    assert not list((tmp_path / "kernels").glob("*.so"))


def test_a_folder_that_others_can_write_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels").chmod(0o777)
    with pytest.raises(NativeUnavailableError, match="written by others"):
        find_library(PLAIN, tmp_path / "kernels")


def test_a_user_without_a_home_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert get_cache_folder().is_relative_to(tmp_path)
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("os.getuid", lambda: 2**31 - 7)  # as in a container that runs as any user
    with pytest.raises(NativeUnavailableError, match="set HOME"):
        get_cache_folder()


def test_levels_are_those_that_the_flags_allow(tmp_path: Path) -> None:
    assert [level.name for level in list_levels(frozenset())] == ["plain"]
    assert [level.name for level in list_levels(frozenset({"avx2", "fma"}))] == ["avx2", "plain"]
    everything = frozenset().union(*[level.flags for level in LEVELS])
    assert list_levels(everything) == LEVELS
    assert read_cpu_flags(tmp_path / "missing") is None
