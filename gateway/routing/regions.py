"""The regions that are known, where they lie and how far away they are from this gateway.

Pure data from settings. Owns no policy: which regions an account may use is tenancy's to say.
Read next: `gateway.routing.roster`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from contracts.errors import ResidencyViolation
from contracts.ids import RegionId
from gateway.settings import RegionSettings

UNKNOWN_LATENCY_S: Final = 0.1
"""To a region that the catalogue does not name."""


@dataclass(frozen=True, slots=True)
class Region:
    """A place where gateways and nodes stand."""

    jurisdiction: str
    latency_s: float
    """From this gateway there and back."""
    entry: str | None = None
    """The origin at which requests enter the platform there, such as `https://weur.example.com`."""


class RegionCatalogue:
    """Regions by name."""

    def __init__(self, own: RegionId, regions: Mapping[RegionId, Region]) -> None:
        """`own` is where this gateway stands; nothing is farther from itself than nothing."""
        self.own: Final = own
        self._regions = regions

    def find_jurisdiction(self, region: RegionId) -> str | None:
        """Whose law holds there; None for a region that is not in the catalogue."""
        known = self._regions.get(region)
        return None if known is None else known.jurisdiction

    def measure_latency_s(self, region: RegionId | None) -> float:
        """There and back; None is a region that nobody knows."""
        if region == self.own:
            return 0.0
        known = None if region is None else self._regions.get(region)
        return UNKNOWN_LATENCY_S if known is None else known.latency_s

    def list_jurisdictions(self) -> list[tuple[RegionId, str]]:
        """Each region and whose law holds there."""
        return [(name, region.jurisdiction) for name, region in self._regions.items()]

    def require_entry(self, allowed: Iterable[RegionId] | None) -> None:
        """Raises: `ResidencyViolation` when requests bound to `allowed` may not enter here."""
        if allowed is None or self.own in (allowed := tuple(allowed)):
            return
        entries = self.list_entries(allowed)
        hint = f" Send them to {' or '.join(entries)}." if entries else ""
        raise ResidencyViolation(
            f"This gateway is in region {self.own}, where requests of the account may not enter."
            + hint
        )

    def list_entries(self, regions: Iterable[RegionId] | None) -> list[str]:
        """Where requests may enter in `regions`, in order of name."""
        names = sorted(self._regions if regions is None else regions)
        entries = [self._regions[name].entry for name in names if name in self._regions]
        return [entry for entry in entries if entry is not None]


def create_catalogue(own: RegionId, regions: Iterable[RegionSettings]) -> RegionCatalogue:
    """The regions as settings name them."""
    known = {
        region.name: Region(region.jurisdiction, region.latency_ms / 1000, region.entry)
        for region in regions
    }
    return RegionCatalogue(own, known)
