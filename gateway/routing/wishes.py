"""What a client's headers ask of routing: they can narrow what the account allows, never widen it.

Owns the headers' names and their reading. Read next: `gateway.routing.region_policy`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from contracts.errors import InvalidRequest
from contracts.ids import NodeId, RegionId, find_jurisdiction_fault, find_region_fault
from contracts.short_text import shorten
from gateway.routing.route_plan import Rejection, RoutePlan

SESSION_HEADER: Final = b"x-session-affinity"
REGIONS_HEADER: Final = b"x-hearth-regions"
JURISDICTIONS_HEADER: Final = b"x-hearth-jurisdictions"
EXPLAIN_HEADER: Final = b"x-hearth-explain"
_MAX_BYTES: Final = 512
"""Of a session's name that are read, and of a list of regions or jurisdictions that is taken."""
_YES: Final = (b"1", b"true")
"""What asks for an explanation; all else does not."""
_SHOWN_CHARS: Final = 120
"""Of a name that is none."""


class Wishes(msgspec.Struct, frozen=True):
    """What one request asks for."""

    session: bytes | None = None
    regions: frozenset[RegionId] | None = None
    """None: not narrowed."""
    jurisdictions: frozenset[str] | None = None
    is_explained: bool = False

    @property
    def is_narrowing(self) -> bool:
        """True where they leave a request fewer regions than its account has."""
        return self.regions is not None or self.jurisdictions is not None


NO_WISHES: Final = Wishes()


def read_wishes(headers: Iterable[tuple[bytes, bytes]]) -> Wishes:
    """The wishes in `headers`, whose names are in lower case.

    Raises: `InvalidRequest` for a list that is too long: cut, its last name could be another's; for
    one that comes twice: whoever wrote the other means it, too; and for what names no places: taken
    for one that is nowhere, it would be refused without a word on how it is written.
    """
    wished = [(name, value) for name, value in headers if name.startswith(b"x-")]
    if not wished:
        return NO_WISHES
    found = dict(wished)
    if len(found) < len(wished):
        _require_single(name for name, _ in wished)
    regions, jurisdictions = found.get(REGIONS_HEADER), found.get(JURISDICTIONS_HEADER)
    for name, value in ((REGIONS_HEADER, regions), (JURISDICTIONS_HEADER, jurisdictions)):
        if value is not None and len(value) > _MAX_BYTES:
            raise InvalidRequest(f"`{name.decode()}` is longer than {_MAX_BYTES} bytes.")
    return Wishes(
        found.get(SESSION_HEADER, b"")[:_MAX_BYTES] or None,
        None if regions is None else _read_regions(regions),
        None if jurisdictions is None else _read_jurisdictions(jurisdictions),
        found.get(EXPLAIN_HEADER) in _YES,
    )


def narrow(
    allowed: Sequence[RegionId] | None, wishes: Wishes, lying_there: Iterable[RegionId]
) -> tuple[RegionId, ...] | None:
    """The regions that both the account and the request allow; None means any.

    `lying_there` are those in the jurisdictions that are wished for, if any are.
    """
    if not wishes.is_narrowing:
        return None if allowed is None else tuple(allowed)
    left = None if allowed is None else set(allowed)
    wanted = [wishes.regions, None if wishes.jurisdictions is None else set(lying_there)]
    for regions in wanted:
        if regions is not None:
            left = set(regions) if left is None else left & regions
    assert left is not None
    return tuple(sorted(left))


def intersect(
    regions: tuple[RegionId, ...] | None, others: Sequence[RegionId] | None
) -> tuple[RegionId, ...] | None:
    """The regions that are in both; None means any."""
    if others is None:
        return regions
    if regions is None:
        return tuple(others)
    return tuple(region for region in regions if region in others)


def format_explanation(plan: RoutePlan, queued_s: float = 0.0) -> bytes:
    """A header line that says why a node was chosen, how many were passed over for what, and how
    long the request had waited for one with room.
    """
    parts = [
        f"pick={plan.pick}",
        f"cost_ms={plan.first_token_s * 1000:.1f}",
        f"cached_tokens={plan.num_cached_tokens}",
        f"new_tokens={plan.num_new_tokens}",
        f"seen={plan.num_seen}",
        *([f"queued_ms={queued_s * 1000:.1f}"] if queued_s else []),
        *([f"spilled={plan.num_spilled}"] if plan.num_spilled else []),
        *([] if plan.prefill is None else [f"prefill={plan.prefill.region}"]),
        *_count_reasons(plan.rejected),
    ]
    return _format_line(parts)


def format_refusal(rejected: Sequence[tuple[NodeId, Rejection]], num_more: int = 0) -> bytes:
    """The same where no node was chosen, or none has answered; `num_more` were not looked at."""
    more = [f"more={num_more}"] if num_more else []
    return _format_line(["pick=none", *_count_reasons(rejected), *more])


def _count_reasons(rejected: Iterable[tuple[NodeId, Rejection]]) -> list[str]:
    """How many nodes were passed over for each reason."""
    counts = Counter(reason for _, reason in rejected)
    return [f"{reason}={count}" for reason, count in sorted(counts.items())]


def _format_line(parts: Iterable[str]) -> bytes:
    """The header's line."""
    return b"x-hearth-explain: " + "; ".join(parts).encode() + b"\r\n"


def _require_single(names: Iterable[bytes]) -> None:
    """Raises: `InvalidRequest` when a header that narrows is there more than once."""
    counts = Counter(names)
    for name in (REGIONS_HEADER, JURISDICTIONS_HEADER):
        if counts[name] > 1:
            raise InvalidRequest(f"`{name.decode()}` must not come more than once.")


def _read_regions(value: bytes) -> frozenset[RegionId]:
    """The regions of the header. Raises: `InvalidRequest`."""
    form = "regions, separated by commas, such as `weur,enam`"
    return frozenset(map(RegionId, _read_names(REGIONS_HEADER, value, form, find_region_fault)))


def _read_jurisdictions(value: bytes) -> frozenset[str]:
    """The jurisdictions of the header. Raises: `InvalidRequest`."""
    form = "jurisdictions, separated by commas, such as `eu,us`"
    return frozenset(_read_names(JURISDICTIONS_HEADER, value, form, find_jurisdiction_fault))


def _read_names(
    header: bytes, value: bytes, form: str, find_fault: Callable[[str], str | None]
) -> list[str]:
    """The names of a list with commas. Raises: `InvalidRequest` for what none can be, or for none,
    in words that say how such a list is written.
    """
    words = value.decode("ascii", "replace").split(",")
    names = [word.strip() for word in words if word.strip()]
    fault = None if names else "There is no name in the list."
    for name in names:
        if fault is None and find_fault(name) is not None:
            fault = find_fault(_clean(name))
    if fault is not None:
        raise InvalidRequest(f"`{header.decode()}` takes {form}. {fault}")
    return names


def _clean(name: str) -> str:
    """What no place is called, as an error may say it."""
    shown = (character if character.isprintable() else "\ufffd" for character in name)
    return shorten("".join(shown), _SHOWN_CHARS)
