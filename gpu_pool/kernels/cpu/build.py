"""Compiles the kernels once per machine and level, into a folder of the user's own.

A library's name holds a digest of the sources and options, so that another version never finds it;
its last bytes are a digest of the rest, so that a torn or altered file is built anew instead of
being loaded. Processes that need the same one wait for whichever came first.
By itself it builds ahead of the first start: `python -m gpu_pool.kernels.cpu.build`, and with
`--image` into `BUILT`, for machines without a compiler.
"""

import argparse
import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from gpu_pool.kernels.cpu.levels import LEVELS, Level, list_levels, read_cpu_flags
from gpu_pool.load_progress import find_progress

_FOLDER: Final = Path(__file__).parent
_SOURCES: Final = ("product.cpp", "int4.cpp", "attention.cpp", "elementwise.cpp", "layers.cpp")
_HEADERS: Final = (
    "int4_groups.h",
    "int4_rows.h",
    "int4_tiles.h",
    "kernels.h",
    "matrix_tiles.h",
    "near_products.h",
    "panels.h",
    "product.h",
    "product_rows.h",
    "product_tiles.h",
    "softmax.h",
    "team.h",
    "tile.h",
    "tile_parts.h",
    "vector.h",
)
# libgomp is torch's own, found at loading: two of them would fight for the cores.
_OPTIONS: Final = (
    "-O3",
    "-std=c++17",
    "-fPIC",
    "-shared",
    "-fopenmp",
    "-Wno-psabi",
    "-nodefaultlibs",
)
_LIBRARIES: Final = ("-lstdc++", "-lm", "-lc", "-lgcc_s", "-lgcc")
_COMPILERS: Final = ("g++", "c++")
_BUILD_TIMEOUT_S: Final = 180
_DIGEST_BYTES: Final = 32
BUILT: Final = _FOLDER / "built"
"""Libraries that came with the installation."""


class NativeUnavailableError(Exception):
    """The kernels cannot be had on this machine; says why."""


def get_cache_folder() -> Path:
    """Where libraries are kept, per user.

    Raises: `NativeUnavailableError` for a user without a home, as in a container with any uid.
    """
    try:
        return Path.home() / ".cache" / "hearth" / "kernels"
    except RuntimeError as error:
        raise NativeUnavailableError("this user has no home folder; set HOME") from error


def name_library(level: Level) -> str:
    """The file name of the library for these sources at that level."""
    digest = hashlib.sha256(repr((_OPTIONS, _LIBRARIES, level.options)).encode())
    for name in (*_HEADERS, *_SOURCES):
        digest.update((_FOLDER / name).read_bytes())
    return f"hearth-cpu-{level.name}-{digest.hexdigest()[:16]}.so"


def find_library(level: Level, folder: Path) -> Path:
    """The library for `level`: the installation's, or that in `folder`, built where it is missing.

    Raises: `NativeUnavailableError`.
    """
    name = name_library(level)
    if is_whole(BUILT / name):
        return BUILT / name
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _require_own(folder)
        if is_whole(folder / name):  # also where nothing can be written, not even a lock
            return folder / name
        with (folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not is_whole(folder / name):
                build(level, folder / name)
    except OSError as error:
        raise NativeUnavailableError(f"{folder} cannot be used: {error}") from error
    return folder / name


def build(level: Level, path: Path) -> None:
    """Compiles the library and puts it at `path`, whole or not at all.

    Raises: `NativeUnavailableError` without a compiler, or with what it said.
    """
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        raise NativeUnavailableError(f"there is no C++ compiler ({' or '.join(_COMPILERS)})")
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="build-") as scratch:
        built = Path(scratch) / path.name
        sources = [str(_FOLDER / name) for name in _SOURCES]
        command = [compiler, *_OPTIONS, *level.options, *sources, "-o", str(built), *_LIBRARIES]
        code, errors = _compile(command)
        if code:
            said = next(filter(None, errors.splitlines()), f"exit code {code}")
            raise NativeUnavailableError(f"{compiler} failed: {said}")
        content = built.read_bytes()
        with built.open("ab") as file:
            file.write(hashlib.sha256(content).digest())
        built.chmod(0o555)  # an image's libraries are another user's
        built.replace(path)


def _compile(command: list[str]) -> tuple[int, str]:
    """The compiler's exit code and what it said; whoever waits for the load hears that it goes on.

    Raises: `NativeUnavailableError` when it does not come to an end.
    """
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        for _ in range(_BUILD_TIMEOUT_S):
            with contextlib.suppress(subprocess.TimeoutExpired):
                _, errors = process.communicate(timeout=1.0)
                return process.returncode, errors
            find_progress().advance(0)
        process.kill()
    raise NativeUnavailableError(f"{command[0]} did not come to an end")


def is_whole(path: Path) -> bool:
    """True when the library can be read and ends in the digest of what stands before."""
    try:
        content = path.read_bytes()
    except OSError:
        return False
    return hashlib.sha256(content[:-_DIGEST_BYTES]).digest() == content[-_DIGEST_BYTES:]


def _require_own(folder: Path) -> None:
    """Raises: `NativeUnavailableError` where others could put code into `folder`."""
    status = folder.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise NativeUnavailableError(f"{folder} belongs to or can be written by others")


def main() -> None:
    """Builds what this machine would build at the first start, or all levels for an image."""
    parser = argparse.ArgumentParser(description="Builds the kernels of the CPU path.")
    parser.add_argument(
        "--image", action="store_true", help="every level, into the installation, for any machine"
    )
    if parser.parse_args().image:
        BUILT.mkdir(exist_ok=True)
        for level in LEVELS:
            build(level, BUILT / name_library(level))
            sys.stdout.write(f"{BUILT / name_library(level)}\n")
        return
    flags = read_cpu_flags()
    if flags is not None:
        sys.stdout.write(f"{find_library(list_levels(flags)[0], get_cache_folder())}\n")


if __name__ == "__main__":
    main()
