"""What a checkpoint's files held when the model was added: a digest per tensor, beside the files.

A tensor's digest is SHA-256 over the SHA-256 of each of its pieces of 8 MiB, so that several
threads can hash one tensor while they read it. Whoever can write the folder can write the digests:
they guard against faults of drives, copies and hands, not against an enemy.
Read next: `checkpoint` (compares), `gpu_pool.worker.model_loading` (decides when).
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from gpu_pool.models.errors import CheckpointError

DIGESTS_FILE: Final = "hearth-digests.json"
STAMP_FILE: Final = "hearth-verified.json"
FileStates = dict[str, tuple[int, int, int, int]]
"""By name: size, inode, and the times of content and of inode in nanoseconds."""


class FileDigests(msgspec.Struct, frozen=True, kw_only=True):
    """One file."""

    header: str
    tensors: dict[str, str]


class CheckpointDigests(msgspec.Struct, frozen=True, kw_only=True):
    """All that was noted."""

    version: int = 1
    revision: str
    """As `revision` computes it, over all files."""
    config: str
    """SHA-256 of `config.json`."""
    files: dict[str, FileDigests]


class _Stamp(msgspec.Struct, frozen=True, kw_only=True):
    """What the files were when they were last found sound."""

    files: FileStates


def read_digests(model_dir: Path) -> CheckpointDigests | None:
    """What was noted; None where nothing was. Raises: `CheckpointError` when it is malformed."""
    path = model_dir / DIGESTS_FILE
    try:
        digests = msgspec.json.decode(path.read_bytes(), type=CheckpointDigests)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: {error}.") from error
    if digests.version != 1:
        raise CheckpointError(f"{path} is of version {digests.version}; only 1 is known.")
    return digests


def write_digests(model_dir: Path, digests: CheckpointDigests) -> None:
    """Notes `digests` beside the files."""
    content = msgspec.json.format(msgspec.json.encode(digests), indent=1)
    (model_dir / DIGESTS_FILE).write_bytes(content + b"\n")


def is_stamped(model_dir: Path, files: Iterable[Path]) -> bool:
    """True when nothing has touched `files` since they were found sound."""
    try:
        stamp = msgspec.json.decode((model_dir / STAMP_FILE).read_bytes(), type=_Stamp)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return False
    return stamp.files == describe_files(files)


def write_stamp(model_dir: Path, files: Iterable[Path], before: FileStates) -> None:
    """Notes that `files`, described as `before` when reading began, are sound.

    A folder that cannot be written is checked again next time; so is one that has changed since.
    """
    described = describe_files(files)
    if described != before:
        return
    unfinished = model_dir / f".{STAMP_FILE}.{os.getpid()}"
    try:
        unfinished.write_bytes(msgspec.json.encode(_Stamp(files=described)))
        unfinished.replace(model_dir / STAMP_FILE)
    except OSError:
        unfinished.unlink(missing_ok=True)


def describe_files(files: Iterable[Path]) -> FileStates:
    """What tells a touched file from an untouched one, by name."""
    found = {path.name: path.stat() for path in files}
    return {
        name: (status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
        for name, status in found.items()
    }
