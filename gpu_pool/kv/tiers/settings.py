"""The tiers' section of an engine's settings.

Owns names, defaults and ranges; must not know where they are read from. All figures are per model.
Read next: `tier_store`.
"""

from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from contracts.ids import RegionId

Positive = Annotated[int, msgspec.Meta(ge=1)]
_SEGMENT_STEP: Final = 16 << 20


class HostTierSettings(msgspec.Struct, frozen=True, kw_only=True):
    """KV in the host's memory, as it is: an operator who swaps to disk must encrypt that."""

    max_bytes: Positive
    account_bytes: Positive | None = None
    """What one account may keep; None: half of `max_bytes`."""


class FileTierSettings(msgspec.Struct, frozen=True, kw_only=True):
    """KV in files of this machine, each sealed under a key that only a request brings."""

    path: Path
    """A directory for nothing else; all models of a node may share it, nodes may not."""
    max_bytes: Positive
    account_bytes: Positive | None = None
    """What one account may keep; None: half of `max_bytes`."""


class StoreTierSettings(msgspec.Struct, frozen=True, kw_only=True):
    """KV in Mooncake Store, which many nodes share, each block sealed under a key that only a
    request brings. Raises: `ValueError` for what the store would not take.
    """

    master: str
    """`host:port` of `mooncake_master`, which the node does not start."""
    max_bytes: Positive
    """What this node has put there; whatever else is in the store the master bounds."""
    account_bytes: Positive | None = None
    """What one account may keep of that; None: half of `max_bytes`."""
    segment_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Memory that this node lends to the store, where what it puts lies first."""
    local_host: str = "127.0.0.1"
    """Where the other nodes find that memory."""
    network_namespace: Path | None = None
    """The store's client lives in it, such as `/run/netns/kv`, and nothing else of the node: its
    ports exist nowhere else. None: `transfer.network_namespace`, if there is one."""
    regions: tuple[RegionId, ...] = ()
    """Of all nodes that share the master, this one's among them: blocks of requests that may not be
    in each of them neither go there nor come. Empty: of all requests that are bound to regions."""
    protocol: Literal["tcp"] = "tcp"
    call_s: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    """How long anybody waits for the store; what takes longer counts as away."""

    def __post_init__(self) -> None:
        """Checks the forms."""
        host, _, port = self.master.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise ValueError("`master` is an address and a port, such as 10.77.0.5:50051")
        if not self.local_host or ":" in self.local_host:
            raise ValueError("`local_host` is an IPv4 address or a name, without a port")
        if self.segment_bytes % _SEGMENT_STEP:
            raise ValueError("`segment_bytes` are a multiple of 16 MiB (16777216), or 0")


class TierSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where prefixes go that the device has computed. Raises: `ValueError` without any tier."""

    host: HostTierSettings | None = None
    file: FileTierSettings | None = None
    store: StoreTierSettings | None = None
    staging_tokens: Positive = 4096
    """Tokens whose KV may come from tiers at once for one account; takes host memory for twice as
    many, half of which is left to others."""

    def __post_init__(self) -> None:
        """Checks that there is a tier."""
        if self.host is None and self.file is None and self.store is None:
            raise ValueError("tiers need a `host`, a `file` or a `store` section")

    def in_network(self, namespace: Path | None) -> "TierSettings":
        """The same, with a store's client in `namespace` unless it has one of its own."""
        if self.store is None or self.store.network_namespace is not None:
            return self
        store = msgspec.structs.replace(self.store, network_namespace=namespace)
        return msgspec.structs.replace(self, store=store)
