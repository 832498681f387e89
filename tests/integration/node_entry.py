"""A node process as `run_gateway` needs to know it."""

from dataclasses import dataclass
from pathlib import Path

from contracts.ids import NodeId


@dataclass(frozen=True)
class NodeEntry:
    """Where a node listens, its key, and the folder its models lie in."""

    url: str
    pair_key: bytes
    folder: Path
    node_id: NodeId
