"""Signed heads of the audit log, kept in a file outside the database.

Whoever can write to the database could rewrite the log and its hashes; a head says which hash the
log had at an entry, under a key that the database does not hold. Owns the file's lines and their
signatures (Ed25519). Read next: `tenancy.audit.verification`.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import msgspec
from cryptography.exceptions import InvalidSignature

from contracts.settings import SettingsError
from tenancy.encryption.key_ring import Keys
from tenancy.encryption.signing_key import derive_signing_key

_PURPOSE: Final = b"hearth audit heads\0"


class SignedHead(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the file; hash and signature in hexadecimal digits."""

    sequence: int
    hash: str
    unix_s: int
    key_version: int
    signature: str


@dataclass(frozen=True, slots=True)
class HeadLine:
    """A line as it was found; None when it is no head of ours."""

    number: int
    head: SignedHead | None


class HeadLog(Protocol):
    """Where signed heads go."""

    def append(self, head: SignedHead) -> None:
        """Keeps `head`, on the disk when this returns. Raises: `OSError`."""
        ...

    def read(self, keys: Keys) -> Iterator[HeadLine]:
        """Every line, checked. Raises: `SettingsError` when it cannot be read."""
        ...


class NoHeadLog:
    """Keeps nothing: a cut tail of the log would not show."""

    def append(self, head: SignedHead) -> None:
        """Forgets."""

    def read(self, keys: Keys) -> Iterator[HeadLine]:
        """Nothing."""
        return iter(())


class HeadFile:
    """A file that only grows, one JSON object a line, mode 0600; several processes may share it."""

    def __init__(self, path: Path) -> None:
        """Opens nothing yet."""
        self._path = path

    def append(self, head: SignedHead) -> None:
        """Adds a line in one write, so that no two processes mix theirs. Raises: `OSError`."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, msgspec.json.encode(head) + b"\n")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def read(self, keys: Keys) -> Iterator[HeadLine]:
        """Every line, checked; a missing file has none. Raises: `SettingsError`."""
        return read_heads(self._path, keys)


def sign_head(sequence: int, digest: bytes, unix_s: int, keys: Keys) -> SignedHead:
    """The head of a log that ends with entry `sequence`, under the current master key."""
    version = keys.master_keys.current_version
    message = _to_message(sequence, digest.hex(), unix_s, version)
    return SignedHead(
        sequence=sequence,
        hash=digest.hex(),
        unix_s=unix_s,
        key_version=version,
        signature=derive_signing_key(keys.master_keys.current, _PURPOSE).sign(message).hex(),
    )


def read_heads(path: Path, keys: Keys) -> Iterator[HeadLine]:
    """The file's lines, each checked; a missing file has none.

    Raises: `SettingsError` when the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                yield HeadLine(number, _read_head(line, keys))
    except FileNotFoundError:
        return
    except OSError as error:
        raise SettingsError(f"The audit heads {path} cannot be read: {error.strerror}.") from error


def _read_head(line: bytes, keys: Keys) -> SignedHead | None:
    """The head on a line, None when it is malformed or its signature is not ours."""
    try:
        head = msgspec.json.decode(line, type=SignedHead)
        key = keys.master_keys.keys.get(head.key_version)
        if key is None:
            return None
        message = _to_message(head.sequence, head.hash, head.unix_s, head.key_version)
        public_key = derive_signing_key(key, _PURPOSE).public_key()
        public_key.verify(bytes.fromhex(head.signature), message)
    except (ValueError, InvalidSignature):  # msgspec's errors are ValueErrors too
        return None
    return head


def _to_message(sequence: int, digest: str, unix_s: int, key_version: int) -> bytes:
    """What is signed."""
    return _PURPOSE + msgspec.msgpack.encode((sequence, digest, unix_s, key_version))
