"""How often requests come for a model: counts that grow, by where they may be computed, and where
they had rather be.

Owns the sample that a gateway keeps and hot standby reads; it names no account. Samples only grow
within one boot of a gateway, so that whoever reads them late or twice misses nothing.
Read next: `contracts.fleet_view`.
"""

from typing import Annotated, Final

import msgspec

from contracts.ids import ModelName, RegionId

NUM_GAP_BUCKETS: Final = 32
"""Bucket `b` counts gaps of `2**(b-1)` to `2**b` milliseconds; the last one all longer ones."""
_Count = Annotated[int, msgspec.Meta(ge=0, lt=2**48)]


class DemandSample(msgspec.Struct, frozen=True, kw_only=True):
    """The requests for one model that may be computed in the same regions, and prefer the same."""

    model: ModelName
    allowed_regions: tuple[RegionId, ...] | None
    """None means any."""
    num_arrivals: _Count
    last_arrival_unix_ms: _Count
    gaps: Annotated[
        tuple[_Count, ...], msgspec.Meta(min_length=NUM_GAP_BUCKETS, max_length=NUM_GAP_BUCKETS)
    ]
    """Times between one arrival and the next, counted by bucket."""
    preferred_regions: tuple[RegionId, ...] = ()
    """Where they are computed before all others, as long as there is room; empty: nowhere."""


def find_gap_bucket(gap_ms: int) -> int:
    """The bucket that counts `gap_ms`."""
    return min(max(gap_ms, 0).bit_length(), NUM_GAP_BUCKETS - 1)
