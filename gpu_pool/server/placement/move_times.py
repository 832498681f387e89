"""How long a model takes to come to the device, from what it took before.

Pure: times are handed in. Read next: `keeper`.
"""

from typing import Final

from contracts.placement import Tier

_START_S: Final = 4.0
"""Of a process, until it begins to read."""
_DISK_BYTES_PER_S: Final = 1e9
_HOST_BYTES_PER_S: Final = 4e9
_REMOTE_BYTES_PER_S: Final = 1e8
_WEIGHT: Final = 0.3


class MoveTimes:
    """What was measured of one model. Units: seconds."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._from_tier: dict[Tier, float] = {}
        self.last_s = 0.0

    def note(self, before: Tier, seconds: float) -> None:
        """It came from `before`: from `remote` to the disk, from all others to the device."""
        if before is not Tier.REMOTE:
            self.last_s = seconds
        known = self._from_tier.get(before, seconds)
        self._from_tier[before] = known + _WEIGHT * (seconds - known)

    def estimate(self, before: Tier, weights_bytes: int) -> float:
        """How long it will take from there."""
        if before is Tier.GPU:
            return 0.0
        if before is Tier.REMOTE:
            fetch_s = self._from_tier.get(before, weights_bytes / _REMOTE_BYTES_PER_S)
            return fetch_s + self.estimate(Tier.DISK, weights_bytes)
        if before in self._from_tier:
            return self._from_tier[before]
        if before is Tier.HOST:
            return weights_bytes / _HOST_BYTES_PER_S
        return _START_S + weights_bytes / _DISK_BYTES_PER_S
