"""Pair keys: what one gateway and one node share, and how it is replaced without a pause.

Owns the file's form and who may read it, the names of keys, and a new key's way over a connection
that the old one has proved. Must not read or write files. Read next: `contracts.grant`, which seals
with keys made from it; `contracts.enrolment`, which brings the first one to a node.
"""

import hashlib
import hmac
import re
import stat
from dataclasses import dataclass
from typing import Final

from contracts.errors import Forbidden
from contracts.settings import SettingsError

PAIR_KEY_BYTES: Final = 32
KEY_NAME_LENGTH: Final = 16
_MAX_KEYS: Final = 2
_MAC_BYTES: Final = 32
_LINE: Final = re.compile(r"(?:once:([0-9]{1,12}):)?([0-9a-fA-F]{64})")


@dataclass(frozen=True, slots=True, repr=False)
class PairKey:
    """One key."""

    key: bytes
    once_until_unix_s: int | None = None
    """Set for the key of an enrolment: until then, or until it is replaced at the first contact."""

    @property
    def name(self) -> str:
        """What tells it from others and nothing of itself: it travels in the clear."""
        return hmac.digest(self.key, b"hearth key name", "sha256").hex()[:KEY_NAME_LENGTH]


@dataclass(frozen=True, slots=True, repr=False)
class PairKeys:
    """The key in use, and behind it the one that it replaces while both are valid."""

    keys: tuple[PairKey, ...]

    @property
    def newest(self) -> PairKey:
        """The one that a gateway connects with."""
        return self.keys[0]

    def find(self, name: str, unix_s: float) -> PairKey | None:
        """The key of that name, if it is still valid; without a name the oldest: whoever gives none
        is of a version that replaces no keys."""
        for key in self.keys:
            if key.name == (name or self.keys[-1].name):
                is_over = key.once_until_unix_s is not None and unix_s >= key.once_until_unix_s
                return None if is_over else key
        return None

    def stage(self, key: bytes, proved: PairKey) -> "PairKeys":
        """`key` beside the one that the connection was proved with; others are void."""
        return PairKeys((PairKey(key), proved))

    def settle(self) -> "PairKeys":
        """The newest alone."""
        return PairKeys(self.keys[:1])


def parse_pair_keys(content: bytes, mode: int, path: str) -> PairKeys:
    """The keys in a file with this `content` and `mode` (`st_mode`); `path` is for the message.

    Raises: `SettingsError` when it is malformed or others may read the file.
    """
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise SettingsError(f"The key file {path} may be read by others; its mode must be 0600.")
    lines = content.decode("ascii", errors="replace").split()
    found = [_LINE.fullmatch(line) for line in lines]
    matches = [match for match in found if match is not None]
    if not matches or len(matches) < len(found) or len(matches) > _MAX_KEYS:
        num_digits = 2 * PAIR_KEY_BYTES
        raise SettingsError(f"The key file {path} must hold {num_digits} hexadecimal digits.")
    return PairKeys(
        tuple(
            PairKey(bytes.fromhex(match[2]), None if match[1] is None else int(match[1]))
            for match in matches
        )
    )


def format_pair_keys(keys: PairKeys) -> str:
    """The content of the file."""
    return "".join(
        f"{key.key.hex()}\n"
        if key.once_until_unix_s is None
        else f"once:{key.once_until_unix_s}:{key.key.hex()}\n"
        for key in keys.keys
    )


def seal_pair_key(key: bytes, connection_key: bytes, nonce: bytes) -> bytes:
    """`key` as it travels over the connection of `connection_key`; a nonce is used once.

    Who knows the old key and has listened without TLS can read it: a key that may be in other hands
    is replaced by a new pair, not by this.
    """
    mask = hmac.digest(connection_key, b"hearth new key mask\0" + nonce, "sha256")
    masked = bytes(left ^ right for left, right in zip(key, mask, strict=True))
    return _authenticate(masked, connection_key, nonce) + masked


def unseal_pair_key(sealed: bytes, connection_key: bytes, nonce: bytes) -> bytes:
    """The key inside. Raises: `Forbidden` when it was not sealed for this connection."""
    mac, masked = sealed[:_MAC_BYTES], sealed[_MAC_BYTES:]
    is_whole = len(masked) == PAIR_KEY_BYTES
    if not is_whole or not hmac.compare_digest(mac, _authenticate(masked, connection_key, nonce)):
        raise Forbidden("The new key's seal does not match this connection.")
    mask = hmac.digest(connection_key, b"hearth new key mask\0" + nonce, "sha256")
    return bytes(left ^ right for left, right in zip(masked, mask, strict=True))


def _authenticate(masked: bytes, connection_key: bytes, nonce: bytes) -> bytes:
    return hmac.new(
        connection_key, b"hearth new key seal\0" + nonce + masked, hashlib.sha256
    ).digest()
