"""What the pool's side of a gateway needs of its other parts.

A part of the composition root. Read next: `gateway.pool`.
"""

from dataclasses import dataclass

from gateway.adapter_reading import AdapterReader
from gateway.auth.standing import Standing
from tenancy.interfaces import DrainDirectory


@dataclass(frozen=True, slots=True)
class PoolSurroundings:
    """For `create_pool`."""

    directory: DrainDirectory
    """Says which nodes operators want to be emptied."""
    standing: Standing
    """Says what accounts may do by now."""
    adapters: AdapterReader
    """Has the files of adapters that requests name."""
