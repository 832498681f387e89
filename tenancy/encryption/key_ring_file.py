"""The key ring as a file that only its owner can read.

JSON: `{"format": 1, "peppers": {"current": 1, "keys": {"1": "<64 hex digits>"}}, "master_keys":
{…}}`. Owns the format and the file's safety; all problems are `SettingsError`s that name the file,
never its content. Read next: `tenancy.encryption.key_ring`.
"""

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
import structlog

from contracts.settings import SettingsError
from tenancy.encryption.key_ring import KeyRing, VersionedKeys, create_key_ring
from tenancy.sources import Randomness

log = structlog.get_logger(__name__)
FORMAT: Final = 1
MAX_FILE_BYTES: Final = 1024 * 1024


class _KeysForm(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    current: int
    keys: dict[int, str]


class _KeyRingForm(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: int
    peppers: _KeysForm
    master_keys: _KeysForm


def load_key_ring(path: Path) -> KeyRing:
    """The ring in the file at `path`.

    Raises: `SettingsError` when the file is missing, malformed, or readable by others.
    """
    try:
        with path.open("rb") as file:
            _refuse_exposed(path, os.fstat(file.fileno()))
            content = file.read(MAX_FILE_BYTES)
    except FileNotFoundError as error:
        raise SettingsError(f"There is no key ring at {path}.") from error
    except OSError as error:
        raise SettingsError(f"The key ring {path} cannot be read: {error.strerror}.") from error
    return _decode(path, content)


def create_key_ring_file(path: Path, randomness: Randomness) -> KeyRing:
    """A fresh ring, written to `path` for its owner alone (mode 0600).

    The file appears at once with its whole content and never replaces another.
    Raises: `SettingsError` when the file exists or cannot be written.
    """
    key_ring = create_key_ring(randomness)
    draft = path.with_name(f".{path.name}.{randomness(8).hex()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write_private(draft, _encode(key_ring))
        try:
            os.link(draft, path)  # unlike a rename, a link refuses to replace
        except FileExistsError as error:
            raise SettingsError(f"The key ring {path} exists already.") from error
        finally:
            draft.unlink()
        _sync_folder(path.parent)
    except OSError as error:
        raise SettingsError(f"The key ring {path} cannot be written: {error.strerror}.") from error
    return key_ring


def replace_key_ring_file(path: Path, key_ring: KeyRing, randomness: Randomness) -> None:
    """Puts `key_ring` in the place of the ring at `path`: a reader sees the old one or the new.

    Raises: `SettingsError` when it cannot be written.
    """
    draft = path.with_name(f".{path.name}.{randomness(8).hex()}")
    try:
        _write_private(draft, _encode(key_ring))
        draft.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        raise SettingsError(f"The key ring {path} cannot be written: {error.strerror}.") from error


class FollowedKeyRing:
    """The ring in a file that may be replaced while a process runs; `refresh` looks again."""

    def __init__(self, path: Path) -> None:
        """Raises: `SettingsError`, as `load_key_ring` does."""
        self._path = path
        self._stamp = _stamp(path)
        self._key_ring = load_key_ring(path)

    @property
    def peppers(self) -> VersionedKeys:
        """As of the last look."""
        return self._key_ring.peppers

    @property
    def master_keys(self) -> VersionedKeys:
        """As of the last look."""
        return self._key_ring.master_keys

    def refresh(self) -> bool:
        """True when the file held another ring. One that is missing or unusable changes nothing."""
        stamp = _stamp(self._path)
        if stamp == self._stamp or stamp is None:
            return False
        try:
            self._key_ring = load_key_ring(self._path)
        except SettingsError as error:
            log.error("key_ring_unusable", reason=str(error))
            return False
        self._stamp = stamp
        return True


def load_or_create_key_ring(path: Path, randomness: Randomness) -> KeyRing:
    """The ring at `path`, created first when there is none; several processes may race for it.

    Raises: `SettingsError`.
    """
    if not path.exists():
        with suppress(SettingsError):  # lost the race, or not writable: loading tells which
            create_key_ring_file(path, randomness)
    return load_key_ring(path)


def _stamp(path: Path) -> tuple[int, int] | None:
    """What tells one file at `path` from the next; None when there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_ino, status.st_mtime_ns)


def _refuse_exposed(path: Path, status: os.stat_result) -> None:
    """Raises unless the open file is a regular one whose owner alone has rights."""
    if not stat.S_ISREG(status.st_mode):
        raise SettingsError(f"The key ring {path} is not a regular file.")
    if status.st_mode & 0o077:
        raise SettingsError(
            f"The key ring {path} can be used by other users of this machine "
            f"(mode {stat.S_IMODE(status.st_mode):04o}); run `chmod 600 {path}`."
        )


def _decode(path: Path, content: bytes) -> KeyRing:
    """The ring that `content` spells. Errors leave out the cause, which could quote a key."""
    try:
        form = msgspec.json.decode(content, type=_KeyRingForm)
        if form.format != FORMAT:
            raise SettingsError(
                f"The key ring {path} has format {form.format}; this version reads {FORMAT}."
            )
        return KeyRing(
            peppers=_to_versioned_keys(form.peppers),
            master_keys=_to_versioned_keys(form.master_keys),
        )
    except SettingsError as error:
        raise SettingsError(f"The key ring {path} is not usable: {error}") from None
    except ValueError:  # msgspec's errors, wrong UTF-8 and wrong hexadecimal digits are all of it
        raise SettingsError(f"The key ring {path} is malformed.") from None


def _to_versioned_keys(form: _KeysForm) -> VersionedKeys:
    """The keys of one purpose."""
    keys = {version: bytes.fromhex(key) for version, key in form.keys.items()}
    return VersionedKeys(form.current, keys)


def _encode(key_ring: KeyRing) -> bytes:
    """The file's content."""
    form = _KeyRingForm(
        format=FORMAT,
        peppers=_to_form(key_ring.peppers),
        master_keys=_to_form(key_ring.master_keys),
    )
    return msgspec.json.format(msgspec.json.encode(form), indent=2) + b"\n"


def _to_form(versioned: VersionedKeys) -> _KeysForm:
    """The written form of one purpose's keys."""
    keys = {version: key.hex() for version, key in versioned.keys.items()}
    return _KeysForm(current=versioned.current_version, keys=keys)


def _write_private(path: Path, content: bytes) -> None:
    """Writes a new file of mode 0600 and waits until it is on the disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Waits until the folder's entries are on the disk: a lost ring would void every credential."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
