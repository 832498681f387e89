"""What models may take of a node's memory and disk together, and adapters of its disk.

Owns names, defaults and ranges; must not know who moves what. Read next: `settings` (whose sections
these are), `gpu_pool.server.placement`, `gpu_pool.server.adapters`.
"""

from pathlib import Path
from typing import Annotated

import msgspec

_Positive = Annotated[int, msgspec.Meta(ge=1)]
_NotNegative = Annotated[int, msgspec.Meta(ge=0)]


class PlacementSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How much memory the models of a node share, where not all of them fit at once.

    A model takes its weights and its KV memory of the device, and its weights of the host's memory
    while it sleeps there. On a CPU both are main memory, counted apart.
    """

    device_bytes: _Positive
    host_bytes: _NotNegative = 0
    """For models that sleep; what has no room there is read from disk again."""
    disk_bytes: _Positive | None = None
    """For weights that were fetched and can be fetched again; None bounds nothing."""
    turn_s: Annotated[float, msgspec.Meta(ge=0)] = 2.0
    """How long a model at work stays when another waits for its room."""


class AdapterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where files of tenants' adapters (LoRA) stay that gateways bring."""

    folder: Path = Path(".hearth/adapters")
    """Each node has a folder of its own in it, named after its id; it is made when the first
    adapter comes, for the node's user alone."""
    disk_bytes: _Positive = 4 * 1024 * 1024 * 1024
    """What they may take together; an adapter that is larger is not computed here."""
    keep_days: Annotated[float, msgspec.Meta(gt=0)] = 7.0
    """A file that nobody has used for so long goes, whether there is room or not."""
