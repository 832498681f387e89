"""Counts requests by model and by where they may be computed, for hot standby to read.

Owns the only tally of demand; it holds counts and no account, and its memory is bounded. Read
next: `contracts.demand`, `gateway.routing.fleet`.
"""

from contracts.demand import NUM_GAP_BUCKETS, DemandSample, find_gap_bucket
from contracts.ids import ModelName, RegionId

_Key = tuple[ModelName, tuple[RegionId, ...] | None]


class _Tally:
    """One key's counts."""

    __slots__ = ("gaps", "last_unix_ms", "num_arrivals")

    def __init__(self) -> None:
        self.num_arrivals = 0
        self.last_unix_ms = 0
        self.gaps = [0] * NUM_GAP_BUCKETS


class DemandRecorder:
    """What has been asked for since the process began."""

    def __init__(self, max_keys: int = 4096) -> None:
        """Beyond `max_keys`, the one that was asked for least lately is forgotten."""
        self._max_keys = max_keys
        self._tallies: dict[_Key, _Tally] = {}

    def __len__(self) -> int:
        return len(self._tallies)

    def note(self, model: ModelName, allowed: tuple[RegionId, ...] | None, unix_ms: int) -> None:
        """A request for `model`, which some node offers, has come."""
        key = (model, allowed)
        tally = self._tallies.get(key)
        if tally is None:
            if len(self._tallies) >= self._max_keys:
                oldest = min(self._tallies, key=lambda each: self._tallies[each].last_unix_ms)
                del self._tallies[oldest]
            tally = self._tallies[key] = _Tally()
        if tally.num_arrivals:
            tally.gaps[find_gap_bucket(unix_ms - tally.last_unix_ms)] += 1
        tally.num_arrivals += 1
        tally.last_unix_ms = unix_ms

    def list_samples(self) -> tuple[DemandSample, ...]:
        """Every key's counts."""
        return tuple(
            DemandSample(
                model=model,
                allowed_regions=allowed,
                num_arrivals=tally.num_arrivals,
                last_arrival_unix_ms=tally.last_unix_ms,
                gaps=tuple(tally.gaps),
            )
            for (model, allowed), tally in self._tallies.items()
        )
