"""How long a model takes from each tier until it serves.

Pure arithmetic over what a node says of its models. Must not know demand.
Read next: `hot_standby.cost`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

from contracts.placement import ModelPlacement, Tier

NEARNESS: Final = {Tier.GPU: 0, Tier.HOST: 1, Tier.DISK: 2, Tier.REMOTE: 3}
"""Tiers in order; smaller is nearer."""


@dataclass(frozen=True, slots=True)
class MoveSpeeds:
    """How fast weights move on one node. Units: bytes per second, seconds."""

    host_per_s: float = 8e9
    """From the host's memory to the device."""
    disk_per_s: float = 1.5e9
    """From files to the device, or to the host."""
    remote_per_s: float = 1e8
    disk_start_s: float = 1.5
    """What a start takes besides its bytes: the process, its graphs."""

    def estimate_wake_s(self, weights_bytes: int, tier: Tier) -> float:
        """Until a model of this size serves that is in `tier` now."""
        match tier:
            case Tier.GPU:
                return 0.0
            case Tier.HOST:
                return weights_bytes / self.host_per_s
            case Tier.DISK:
                return self.disk_start_s + weights_bytes / self.disk_per_s
            case Tier.REMOTE:
                return self.disk_start_s + weights_bytes / self.remote_per_s


def learn_speeds(speeds: MoveSpeeds, placements: Iterable[ModelPlacement]) -> MoveSpeeds:
    """`speeds`, corrected by what the node itself expects of the models that are not awake."""
    asleep = [model for model in placements if model.wake_s > 0 and model.weights_bytes]
    host = [model.weights_bytes / model.wake_s for model in asleep if model.tier is Tier.HOST]
    disk = [
        model.weights_bytes / (model.wake_s - speeds.disk_start_s)
        for model in asleep
        if model.tier is Tier.DISK and model.wake_s > speeds.disk_start_s
    ]
    return replace(
        speeds,
        host_per_s=median(host) if host else speeds.host_per_s,
        disk_per_s=median(disk) if disk else speeds.disk_per_s,
    )
