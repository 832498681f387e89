"""What this gateway has done in the last hour, as samples of its counters.

Owns the ring and the arithmetic from counters to rates; nothing here is stored, and nothing names
a tenant. Long memory is Prometheus' affair. Read next: `gateway.telemetry`.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from contracts.histogram import WAIT_BOUNDS_S
from gateway.sources import Sources
from gateway.telemetry import Traffic

SAMPLE_S: Final = 5.0
KEPT_S: Final = 3600.0
_RECENT_S: Final = 300.0
_NUM_POINTS: Final = 60


@dataclass(frozen=True, slots=True)
class Sample:
    """The counters at one moment. Units: seconds."""

    unix_s: float
    taken_s: float
    traffic: Traffic


@dataclass(frozen=True, slots=True)
class Rates:
    """What happened between two samples, by the second."""

    begin_unix_s: float
    end_unix_s: float
    requests_per_s: float
    failed_per_s: float
    refused_per_s: float
    prompt_tokens_per_s: float
    completion_tokens_per_s: float
    num_requests: int
    first_text_p50_s: float | None
    """None: nothing was streamed."""
    first_text_p95_s: float | None

    @property
    def failed_share(self) -> float | None:
        """Of all requests; None when there were none."""
        if not self.requests_per_s:
            return None
        return self.failed_per_s / self.requests_per_s


class TrafficHistory:
    """Takes samples, and tells rates from them."""

    def __init__(self, read: Callable[[], Traffic], sources: Sources) -> None:
        """`read` gives the counters; the first sample is taken now."""
        self._read = read
        self._sources = sources
        self._samples: deque[Sample] = deque(maxlen=int(KEPT_S / SAMPLE_S) + 1)
        self.take_sample()

    async def run(self) -> None:
        """Takes a sample every few seconds, for ever."""
        while True:
            await asyncio.sleep(SAMPLE_S)
            self.take_sample()

    def take_sample(self) -> None:
        """Notes the counters as they are."""
        sources = self._sources
        self._samples.append(Sample(sources.unix_s(), sources.monotonic_s(), self._read()))

    def measure_recent(self) -> Rates:
        """The last minutes, up to now."""
        self._take_sample_if_due()
        newest = self._samples[-1]
        oldest = next(
            sample for sample in self._samples if newest.taken_s - sample.taken_s <= _RECENT_S
        )
        return _compare(oldest, newest)

    def list_rates(self) -> list[Rates]:
        """The whole history in a bounded number of parts, oldest first."""
        samples = list(self._samples)
        stride = max(1, -(-(len(samples) - 1) // _NUM_POINTS))
        marks = [*reversed(samples[::-1][::stride])]
        return [_compare(*pair) for pair in pairwise(marks)]

    def _take_sample_if_due(self) -> None:
        """So that somebody who looks sees the last seconds too."""
        if self._sources.monotonic_s() - self._samples[-1].taken_s >= SAMPLE_S / 2:
            self.take_sample()


def _compare(old: Sample, new: Sample) -> Rates:
    """What happened between the two."""
    span_s = max(new.taken_s - old.taken_s, 1e-3)
    before, after = old.traffic, new.traffic
    streams = [
        n - o for n, o in zip(after.first_text_counts, before.first_text_counts, strict=True)
    ]
    return Rates(
        begin_unix_s=old.unix_s,
        end_unix_s=new.unix_s,
        requests_per_s=(after.num_requests - before.num_requests) / span_s,
        failed_per_s=(after.num_failed - before.num_failed) / span_s,
        refused_per_s=(after.num_refused - before.num_refused) / span_s,
        prompt_tokens_per_s=(after.num_prompt_tokens - before.num_prompt_tokens) / span_s,
        completion_tokens_per_s=(after.num_completion_tokens - before.num_completion_tokens)
        / span_s,
        num_requests=after.num_requests - before.num_requests,
        first_text_p50_s=estimate_quantile(streams, 0.5),
        first_text_p95_s=estimate_quantile(streams, 0.95),
    )


def estimate_quantile(counts: Sequence[int], share: float) -> float | None:
    """Below what time `share` of the streams lie, evenly spread inside their bucket.

    None when there are none; the last bucket has no end and counts as its beginning.
    """
    total = sum(counts)
    if total == 0:
        return None
    wanted, seen, low = share * total, 0, 0.0
    for high, count in zip(WAIT_BOUNDS_S, counts, strict=False):
        if count and seen + count >= wanted:
            return low + (high - low) * (wanted - seen) / count
        seen, low = seen + count, high
    return low
