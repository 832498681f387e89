"""Where sites are and how far from each other: a globe with a few crowded parts.

Deterministic by seed. Light in fibre covers 100 km there and back in a millisecond, and cables take
detours. Units: seconds.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_CENTRES: Final = (
    (48.0, 8.0, 0.22),
    (40.0, -78.0, 0.20),
    (36.0, -119.0, 0.10),
    (-20.0, -48.0, 0.09),
    (22.0, 78.0, 0.11),
    (35.0, 128.0, 0.13),
    (5.0, 105.0, 0.08),
    (-33.0, 148.0, 0.03),
    (-5.0, 25.0, 0.04),
)
"""Latitude, longitude and share of the sites and users: the areas, each a law of its own."""
_SPREAD_DEGREES: Final = 9.0
_KM_PER_MS: Final = 100.0 / 1.4
_HOP_S: Final = 0.001
_EARTH_KM: Final = 6371.0
LAST_MILE_S: Final = 0.008
"""From a user to the nearest site and back."""


@dataclass(frozen=True, slots=True)
class Site:
    """A place where users are, and may be nodes."""

    area: int
    latitude: float
    longitude: float

    def measure_latency_s(self, other: "Site") -> float:
        """There and back."""
        if self == other:
            return 0.0
        first, second = math.radians(self.latitude), math.radians(other.latitude)
        across = math.radians(other.longitude - self.longitude)
        cosine = math.sin(first) * math.sin(second)
        cosine += math.cos(first) * math.cos(second) * math.cos(across)
        distance_km = _EARTH_KM * math.acos(min(max(cosine, -1.0), 1.0))
        return _HOP_S + distance_km / _KM_PER_MS / 1000


def draw_sites(seed: int, num_sites: int) -> list[Site]:
    """Sites, around the centres in proportion to their shares, those of an area together."""
    rng = random.Random(seed)
    sites: list[Site] = []
    share_before = 0.0
    for area, (latitude, longitude, share) in enumerate(_CENTRES):
        share_before += share
        while len(sites) < round(num_sites * min(share_before, 1.0)):
            north, east = (
                rng.gauss(latitude, _SPREAD_DEGREES),
                rng.gauss(longitude, _SPREAD_DEGREES),
            )
            sites.append(Site(area, max(min(north, 70.0), -60.0), east))
    return sites


def find_centre(sites: Sequence[Site]) -> int:
    """The site from which all are nearest on average: where one central one would stand."""

    def measure_mean(place: int) -> float:
        return sum(sites[place].measure_latency_s(site) for site in sites)

    return min(range(len(sites)), key=measure_mean)
