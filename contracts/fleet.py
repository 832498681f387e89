"""What a node says of itself: where it stands, what it serves and how busy it is.

Owns the report; must not know how it is collected or what the router makes of it.
Read next: `contracts.wire`, whose stream 0 carries the reports.
"""

import msgspec

from contracts.ids import BootId, ModelName, NodeId, RegionId


class ModelCard(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model that a node serves, as clients may see it.

    Units: `context_window` in tokens, `created_unix_s` in seconds since 1970.
    """

    name: ModelName
    revision: str
    """Digest of the checkpoint: same revision, same weights."""
    task: str
    """The Workers AI name of the task, such as `Text Generation`."""
    description: str
    context_window: int
    created_unix_s: int = 0


class ModelLoad(msgspec.Struct, frozen=True, kw_only=True):
    """How busy one resident model is."""

    name: ModelName
    is_ready: bool
    num_running: int
    num_waiting: int
    num_blocks: int
    num_free_blocks: int
    """Blocks that can be handed out now, cached ones without an owner included."""


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """A node's own account of itself, sent when a gateway connects and about once a second."""

    node_id: NodeId
    boot_id: BootId
    region: RegionId
    jurisdiction: str
    is_draining: bool
    models: tuple[ModelCard, ...]
    loads: tuple[ModelLoad, ...]
