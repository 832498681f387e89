"""Who may connect to a node, where, and how gateways hear of it.

Owns names, defaults and ranges; must not know sockets. Read next: `settings` (whose sections these
are), `gpu_pool.server.node_server`.
"""

import ipaddress
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from contracts.ids import GatewayId, is_node_id
from contracts.sections import Port, TlsSettings
from contracts.settings import Secret


class ListenSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where gateways connect. Port 0 lets the system choose."""

    host: str = "127.0.0.1"
    port: Port = 8790
    tls: TlsSettings | None = None
    """Needed wherever others can listen in; without it, only loopback is safe."""

    @property
    def is_loopback(self) -> bool:
        """True when nothing outside this machine can connect."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """A gateway that may connect."""

    gateway_id: GatewayId
    key_file: Path
    """The key of this gateway and this node: 32 bytes in hexadecimal, mode 0600."""

    def __post_init__(self) -> None:
        """Checks the id's shape."""
        if not is_node_id(self.gateway_id):
            raise ValueError("gateway_id has letters, digits, `-`, `_`, `.`; at most 63")


class MembershipSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Valkey or Redis, in which this node says that it is there. Units: seconds."""

    url: Secret
    """`redis://…` or `rediss://…`, with the password if there is one."""
    advertised_url: str
    """Where gateways connect: `wss://gpu-7:8790`."""
    budget_s: Annotated[float, msgspec.Meta(gt=0)] = 0.5
    """What one write may take."""

    def __post_init__(self) -> None:
        """Raises: `ValueError` for a URL that no gateway would connect to."""
        parts = urlsplit(self.advertised_url)
        if parts.scheme not in ("ws", "wss") or not parts.hostname:
            raise ValueError("`advertised_url` must be wss://host:port or ws://…")
