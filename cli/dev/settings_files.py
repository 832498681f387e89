"""The TOML files that `hearth dev` writes for its gateway and its node.

Owns their text; the fields themselves are declared by `gateway.settings` and `gpu_pool.settings`.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cli.dev.home import DevHome
from gpu_pool.model_settings import ServedModelSettings

LOOPBACK: Final = "127.0.0.1"
GATEWAY_ID: Final = "dev-gateway"
NODE_ID: Final = "dev-node"
REGION: Final = "local"
STOP_GRACE_S: Final = 5
"""How long running answers may go on after Ctrl-C; below the supervisor's own patience."""


@dataclass(frozen=True, slots=True)
class DevPorts:
    """Ports on loopback."""

    gateway: int
    admin: int
    node: int


def format_gateway_settings(home: DevHome, ports: DevPorts, database_url: str) -> str:
    """The text of `gateway.toml`."""
    return f"""\
# Written by `hearth dev` at every start; changes are lost.
gateway_id = {quote(GATEWAY_ID)}
region = {quote(REGION)}

[listen]
host = {quote(LOOPBACK)}
port = {ports.gateway}

[admin]
host = {quote(LOOPBACK)}
port = {ports.admin}

[database]
url = {quote(database_url)}

[key_ring]
file = {quote(home.key_ring.resolve())}

[journal]
folder = {quote(home.journal.resolve())}

[[nodes]]
node_id = {quote(NODE_ID)}
region = {quote(REGION)}
url = "ws://{LOOPBACK}:{ports.node}"
key_file = {quote(home.pair_key.resolve())}

[limits]
shutdown_grace_s = {STOP_GRACE_S}

[log]
format = "console"
"""


def format_node_settings(
    home: DevHome, ports: DevPorts, models: tuple[ServedModelSettings, ...]
) -> str:
    """The text of `node.toml`."""
    head = f"""\
# Written by `hearth dev` at every start; changes are lost.
node_id = {quote(NODE_ID)}
region = {quote(REGION)}
drain_s = {STOP_GRACE_S}

[listen]
host = {quote(LOOPBACK)}
port = {ports.node}

[adapters]
folder = {quote(home.adapters.resolve())}

[log]
format = "console"

[[gateways]]
gateway_id = {quote(GATEWAY_ID)}
key_file = {quote(home.pair_key.resolve())}
"""
    return "\n".join([head, *(_format_model(model) for model in models)])


def quote(value: str | Path) -> str:
    """`value` as a TOML string: the escapes of JSON are among those of TOML."""
    return json.dumps(str(value))


def _format_model(model: ServedModelSettings) -> str:
    """One `[[models]]` entry."""
    return f"""\
[[models]]
name = {quote(model.name)}
path = {quote(model.path.resolve())}
dtype = {quote(model.dtype)}
description = {quote(model.description)}
"""
