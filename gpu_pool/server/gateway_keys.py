"""The keys this node shares with its gateways, one per pair.

Owns reading and checking the key files; must not know connections. Read next: `wire.handshake`.
"""

import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from contracts.ids import GatewayId
from contracts.settings import SettingsError
from gpu_pool.settings import GatewaySettings

KEY_BYTES: Final = 32


def read_gateway_keys(gateways: Iterable[GatewaySettings]) -> dict[GatewayId, bytes]:
    """The key of each gateway. Raises: `SettingsError`."""
    return {gateway.gateway_id: read_key_file(gateway.key_file) for gateway in gateways}


def read_key_file(path: Path) -> bytes:
    """The key in `path`. Raises: `SettingsError` when it is malformed or others may read it."""
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"The key file {path} cannot be read: {error}") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise SettingsError(f"The key file {path} may be read by others; its mode must be 0600.")
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise SettingsError(f"The key file {path} must hold {KEY_BYTES} bytes in hexadecimal.")
    return key
