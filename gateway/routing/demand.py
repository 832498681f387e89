"""Counts requests by model, by where they may be computed and had rather be, for hot standby.

Owns the only tally of demand; it holds counts and no account, and its memory is bounded. Read
next: `contracts.demand`, `gateway.routing.fleet`.
"""

from typing import Final

from contracts.demand import NUM_GAP_BUCKETS, DemandSample, find_gap_bucket
from contracts.ids import ModelName, RegionId

MAX_REGION_SETS: Final = 64
"""Of a model, that are counted on their own."""
_Key = tuple[ModelName, tuple[RegionId, ...] | None, tuple[RegionId, ...]]


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
        self._num_sets: dict[ModelName, int] = {}

    def __len__(self) -> int:
        return len(self._tallies)

    def note(
        self,
        model: ModelName,
        allowed: tuple[RegionId, ...] | None,
        unix_ms: int,
        preferred: tuple[RegionId, ...] = (),
    ) -> None:
        """A request for `model`, which some node offers, has come.

        Headers can name any set of regions: of those beyond `MAX_REGION_SETS` only the first region
        is counted, where the request may go as well, and not what is preferred.
        """
        key = (model, allowed, preferred)
        tally = self._tallies.get(key)
        is_set = bool(allowed or preferred)
        if tally is None and is_set and self._num_sets.get(model, 0) >= MAX_REGION_SETS:
            key = (model, allowed and allowed[:1], ())
            tally = self._tallies.get(key)
        if tally is None:
            tally = self._begin(key)
        if tally.num_arrivals:
            tally.gaps[find_gap_bucket(unix_ms - tally.last_unix_ms)] += 1
        tally.num_arrivals += 1
        tally.last_unix_ms = unix_ms

    def _begin(self, key: _Key) -> _Tally:
        """A key's first request; the one that was asked for least lately makes room."""
        if len(self._tallies) >= self._max_keys:
            oldest = min(self._tallies, key=lambda each: self._tallies[each].last_unix_ms)
            del self._tallies[oldest]
            self._num_sets[oldest[0]] -= 1
            if not self._num_sets[oldest[0]]:
                del self._num_sets[oldest[0]]
        self._num_sets[key[0]] = self._num_sets.get(key[0], 0) + 1
        tally = self._tallies[key] = _Tally()
        return tally

    def list_samples(self) -> tuple[DemandSample, ...]:
        """Every key's counts."""
        return tuple(
            DemandSample(
                model=model,
                allowed_regions=allowed,
                num_arrivals=tally.num_arrivals,
                last_arrival_unix_ms=tally.last_unix_ms,
                gaps=tuple(tally.gaps),
                preferred_regions=preferred,
            )
            for (model, allowed, preferred), tally in self._tallies.items()
        )
