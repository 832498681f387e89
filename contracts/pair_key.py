"""The file of a pair key: what gateway and node share, one key per pair.

Owns its form and who may read it; must not read it. Read next: `contracts.grant`, which seals with
keys made from it.
"""

import stat
from typing import Final

from contracts.settings import SettingsError

PAIR_KEY_BYTES: Final = 32


def parse_pair_key(content: bytes, mode: int, path: str) -> bytes:
    """The key in a file with this `content` and `mode` (`st_mode`); `path` is for the message.

    Raises: `SettingsError` when it is malformed or others may read the file.
    """
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise SettingsError(f"The key file {path} may be read by others; its mode must be 0600.")
    try:
        key = bytes.fromhex(content.decode("ascii").strip())
    except ValueError:
        key = b""  # the cause could quote the key
    if len(key) != PAIR_KEY_BYTES:
        num_digits = 2 * PAIR_KEY_BYTES
        raise SettingsError(f"The key file {path} must hold {num_digits} hexadecimal digits.")
    return key
