"""The keys this node shares with its gateways, one pair of keys for each while one is replaced.

Owns the key files, read at the start and written when a gateway brings a new key; must not know
connections. Read next: `contracts.pair_key`, `wire.handshake`, `wire.connection`.
"""

import os
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path

import structlog

from contracts.errors import Forbidden
from contracts.ids import GatewayId
from contracts.pair_key import PairKey, PairKeys, format_pair_keys, parse_pair_keys
from contracts.settings import SettingsError
from gpu_pool.connection_settings import GatewaySettings

log = structlog.get_logger(__name__)


class GatewayKeys:
    """Keys by gateway."""

    def __init__(self, gateways: Iterable[GatewaySettings], unix_s: Callable[[], float]) -> None:
        """Reads every file. Raises: `SettingsError`."""
        self._unix_s = unix_s
        self._files = {gateway.gateway_id: gateway.key_file for gateway in gateways}
        self._keys = {gateway_id: read_key_file(path) for gateway_id, path in self._files.items()}

    def find(self, gateway_id: GatewayId, name: str) -> PairKey | None:
        """The key of that name which the gateway may use; None for unknown ones and old ones."""
        keys = self._keys.get(gateway_id)
        return None if keys is None else keys.find(name, self._unix_s())

    def list_valid(self) -> list[PairKey]:
        """Every key that some gateway may use now, those of a rotation under way both."""
        pairs = ((keys, key) for keys in self._keys.values() for key in keys.keys)
        return [key for keys, key in pairs if keys.find(key.name, self._unix_s()) is not None]

    def stage(self, gateway_id: GatewayId, key: bytes, proved: PairKey) -> None:
        """`key` is valid too from now on.

        Raises: `Forbidden` when `proved` is void by now, though its connection still stands;
        `SettingsError` when `key` cannot be kept.
        """
        if self.find(gateway_id, proved.name) != proved:
            raise Forbidden("This connection's key is void.")
        self._replace(gateway_id, self._keys[gateway_id].stage(key, proved))
        log.info("a gateway has brought a new key", gateway=gateway_id)

    def settle(self, gateway_id: GatewayId, proved: PairKey) -> bool:
        """The gateway has used `proved`: if that is the newest key, earlier ones are void.

        True when there were some.
        """
        keys = self._keys[gateway_id]
        if len(keys.keys) == 1 or proved != keys.newest:
            return False
        try:
            self._replace(gateway_id, keys.settle())
        except SettingsError as error:  # void all the same, until the next start
            self._keys[gateway_id] = keys.settle()
            log.error("a key that is void stays in its file", reason=str(error))
        log.info("a gateway's former key is void", gateway=gateway_id)
        return True

    def _replace(self, gateway_id: GatewayId, keys: PairKeys) -> None:
        """Writes the file first: what is not kept is not agreed on. Raises: `SettingsError`."""
        path = self._files[gateway_id]
        draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        try:
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as content:
                content.write(format_pair_keys(keys))
                content.flush()
                os.fsync(descriptor)
            draft.replace(path)
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise SettingsError("The node cannot write its key file.") from error
        self._keys[gateway_id] = keys


def read_key_file(path: Path) -> PairKeys:
    """The keys in `path`. Raises: `SettingsError` when malformed or others may read the file."""
    try:
        content, mode = path.read_bytes(), path.stat().st_mode
    except OSError as error:
        raise SettingsError(f"The key file {path} cannot be read: {error.strerror}.") from error
    return parse_pair_keys(content, mode, str(path))
