"""What a client's headers ask of routing: they can narrow what the account allows, never widen it.

Owns the headers' names and their reading. Read next: `gateway.forwarding`.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from contracts.errors import InvalidRequest
from contracts.ids import NodeId, RegionId
from gateway.routing.route_plan import Rejection, RoutePlan

SESSION_HEADER: Final = b"x-session-affinity"
REGIONS_HEADER: Final = b"x-hearth-regions"
JURISDICTIONS_HEADER: Final = b"x-hearth-jurisdictions"
EXPLAIN_HEADER: Final = b"x-hearth-explain"
_MAX_BYTES: Final = 512
"""Of a session's name that are read, and of a list of regions or jurisdictions that is taken."""


class Wishes(msgspec.Struct, frozen=True):
    """What one request asks for."""

    session: bytes | None = None
    regions: frozenset[RegionId] | None = None
    """None: not narrowed."""
    jurisdictions: frozenset[str] | None = None
    is_explained: bool = False


NO_WISHES: Final = Wishes()


def read_wishes(headers: Iterable[tuple[bytes, bytes]]) -> Wishes:
    """The wishes in `headers`, whose names are in lower case.

    Raises: `InvalidRequest` for a list that is too long: cut, its last name could be another's; and
    for one that comes twice: whoever wrote the other means it, too.
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
        None if regions is None else frozenset(RegionId(name) for name in _split(regions)),
        None if jurisdictions is None else frozenset(_split(jurisdictions)),
        found.get(EXPLAIN_HEADER, b"0") not in (b"", b"0", b"false"),
    )


def narrow(
    allowed: Sequence[RegionId] | None, wishes: Wishes, lying_there: Iterable[RegionId]
) -> tuple[RegionId, ...] | None:
    """The regions that both the account and the request allow; None means any.

    `lying_there` are those in the jurisdictions that are wished for, if any are.
    """
    if wishes.regions is None and wishes.jurisdictions is None:
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
        f"cost_ms={plan.cost_s * 1000:.1f}",
        f"cached_tokens={plan.num_cached_tokens}",
        f"new_tokens={plan.num_new_tokens}",
        f"seen={plan.num_seen}",
        *([f"queued_ms={queued_s * 1000:.1f}"] if queued_s else []),
        *([f"spilled={plan.num_spilled}"] if plan.num_spilled else []),
        *([] if plan.prefill is None else [f"prefill={plan.prefill.region}"]),
        *_count_reasons(plan.rejected),
    ]
    return _format_line(parts)


def format_refusal(rejected: Sequence[tuple[NodeId, Rejection]]) -> bytes:
    """The same where no node was chosen, or none has answered."""
    return _format_line(["pick=none", *_count_reasons(rejected)])


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


def _split(value: bytes) -> list[str]:
    """The words of a list with commas."""
    words = value.decode("ascii", "replace").split(",")
    return [word.strip() for word in words if word.strip()]
