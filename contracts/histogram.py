"""Times as counts per bucket: what gateways and nodes keep of many durations.

Plain lists, for the hot path; must not know what is timed or who reads it. Read next:
`gateway.telemetry`, `gpu_pool.server.stream_meter`.
"""

from bisect import bisect_left
from typing import Final

WAIT_BOUNDS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""For what somebody waits for."""
GAP_BOUNDS_S: Final = (0.002, 0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0)
"""For the time from one token to the next."""


class Times:
    """One histogram: counts per bucket and a sum. Units: seconds."""

    __slots__ = ("bounds_s", "counts", "total_s")

    def __init__(self, bounds_s: tuple[float, ...] = WAIT_BOUNDS_S) -> None:
        """Nothing observed; `bounds_s` are the buckets' upper ends."""
        self.bounds_s: Final = bounds_s
        self.counts: Final = [0] * (len(bounds_s) + 1)
        self.total_s = 0.0

    def observe(self, seconds: float) -> None:
        """Counts one time."""
        self.counts[bisect_left(self.bounds_s, seconds)] += 1
        self.total_s += seconds

    def to_buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts by upper bound, as Prometheus wants them."""
        total, buckets = 0, list[tuple[str, float]]()
        for bound, count in zip((*map(str, self.bounds_s), "+Inf"), self.counts, strict=True):
            total += count
            buckets.append((bound, total))
        return buckets
