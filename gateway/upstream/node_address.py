"""Where a node is, and what it and this gateway prove themselves to each other with.

Owns the address with its key, the key's replacement in its file, and that nobody is sent from there
to another address. Must not know connections.
Read next: `gateway.upstream.pair_key_file`, `gateway.upstream.link`.
"""

import ssl
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp

from contracts.errors import Conflict
from contracts.ids import NodeId
from contracts.pair_key import PAIR_KEY_BYTES, PairKey
from gateway.upstream.handshake import HandshakeFailed
from gateway.upstream.pair_key_file import replace_pair_key, require_replaceable


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """Where a node is and what proves that it is this one."""

    node_id: NodeId
    url: str
    pair_key: PairKey
    ca_file: Path | None
    key_file: Path | None = None
    """Where the key is kept, and a new one written; None: it stays what it is."""

    def draw_key(self, draw_bytes: Callable[[int], bytes]) -> PairKey:
        """A key to follow this one. Raises: `Conflict` where it could not be kept."""
        if self.key_file is None:
            raise Conflict("This node's key is not in a file.")
        require_replaceable(self.key_file)
        return PairKey(draw_bytes(PAIR_KEY_BYTES))

    def keep_key(self, key: PairKey) -> "NodeAddress":
        """The address with `key`, which is in the file now. Raises: `Conflict`."""
        assert self.key_file is not None
        replace_pair_key(self.key_file, key)
        return replace(self, pair_key=key)

    def create_ssl_context(self) -> ssl.SSLContext | bool:
        """The trust for `wss://`: the configured issuers, else the system's."""
        if self.ca_file is None:
            return True
        return ssl.create_default_context(cafile=str(self.ca_file))


def create_session(timeout: aiohttp.ClientTimeout | None = None) -> aiohttp.ClientSession:
    """A session whose requests raise `HandshakeFailed` when they are sent elsewhere.

    aiohttp follows redirects while it opens a WebSocket, to any scheme and address: a node could
    send our requests into the network that we stand in, or past `wss://`.
    """
    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(_refuse)
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout() if timeout is None else timeout, trace_configs=[trace]
    )


async def _refuse(
    session: aiohttp.ClientSession, context: object, params: aiohttp.TraceRequestRedirectParams
) -> None:
    """Raises before the next request is made."""
    del session, context
    params.response.close()
    raise HandshakeFailed("it sends us to another address, which is nothing that nodes do")
