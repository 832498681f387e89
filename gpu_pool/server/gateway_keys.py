"""The keys this node shares with its gateways, one per pair.

Owns reading the key files; must not know connections. Read next: `contracts.pair_key`,
`wire.handshake`.
"""

from collections.abc import Iterable
from pathlib import Path

from contracts.ids import GatewayId
from contracts.pair_key import parse_pair_key
from contracts.settings import SettingsError
from gpu_pool.settings import GatewaySettings


def read_gateway_keys(gateways: Iterable[GatewaySettings]) -> dict[GatewayId, bytes]:
    """The key of each gateway. Raises: `SettingsError`."""
    return {gateway.gateway_id: read_key_file(gateway.key_file) for gateway in gateways}


def read_key_file(path: Path) -> bytes:
    """The key in `path`. Raises: `SettingsError` when it is malformed or others may read it."""
    try:
        content, mode = path.read_bytes(), path.stat().st_mode
    except OSError as error:
        raise SettingsError(f"The key file {path} cannot be read: {error.strerror}.") from error
    return parse_pair_key(content, mode, str(path))
