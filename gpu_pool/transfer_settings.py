"""How a node exchanges KV blocks with others.

Owns names, defaults and ranges; must not know engines. Read next: `settings` (whose section this
is), `gpu_pool.transfer.exchange`.
"""

from pathlib import Path
from typing import Annotated, Literal

import msgspec


class TransferSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How KV blocks come from other nodes and go there. Models need `engine.swap_bytes` for it."""

    engine: Literal["nixl", "mooncake", "memory"] = "nixl"
    """What moves the bytes; `memory` works between processes of one machine, for tests."""
    host: str = "127.0.0.1"
    """Where other nodes find this one; NIXL finds that out itself."""
    network_namespace: Path | None = None
    """The engine's process lives in it, such as `/run/netns/kv`, and nothing else of the node: its
    ports, which ask for no password, exist nowhere else. It takes CAP_SYS_ADMIN to enter one."""
    batch_s: Annotated[float, msgspec.Meta(gt=0)] = 3.0
    """How long one batch of blocks may take. It should be the same at all nodes that exchange them:
    what others may be reading is kept for three times as long."""
