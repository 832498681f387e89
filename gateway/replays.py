"""Whether an answer of before may be given again: what its request allowed, and where it came from.

An answer that another request's key finds has been computed somewhere, and is handed out as one
that is computed now would be: nothing of a region that the request or its account does not allow.
Owns that rule; must not know what is kept, nor for how long. Read next: `gateway.answer_memory`,
`gateway.routing.region_policy`.
"""

from collections.abc import Iterable

import msgspec

from contracts.errors import NoEndpoint, ResidencyViolation
from contracts.ids import RegionId
from gateway.auth.standing import Standing
from gateway.request_context import RequestContext
from gateway.routing.law_table import LawTable
from gateway.routing.region_policy import find_disputed, find_narrowed
from gateway.routing.wishes import read_wishes


class Replays:
    """One gateway's."""

    def __init__(self, laws: LawTable, standing: Standing) -> None:
        """`laws` tells whose law holds where, `standing` what accounts allow by now."""
        self._laws = laws
        self._standing = standing

    async def require(
        self,
        context: RequestContext,
        regions: Iterable[RegionId],
        headers: Iterable[tuple[bytes, bytes]] = (),
    ) -> None:
        """Returns where the account's rules and the request's `headers` allow all `regions`, as
        rules and laws are now: whoever asks may have waited for the answer.

        Raises: `ResidencyViolation`; `NoEndpoint` while different laws are said to hold there; what
        `Standing.find` raises.
        """
        assert context.principal is not None
        principal = await self._standing.find(context.principal, context.generation)
        rules, wishes, laws = principal.region_rules, read_wishes(headers), self._laws
        allowed = find_narrowed(rules, wishes, laws)
        forbidden = set[RegionId]() if allowed is None else set(regions) - set(allowed)
        if not forbidden:
            return
        if forbidden <= find_disputed(rules, wishes.jurisdictions, wishes.regions, laws):
            raise NoEndpoint("It is not settled whose law holds where the answer was computed.")
        raise ResidencyViolation(
            "The answer to this `Idempotency-Key` was computed, or a part of it, in a region that "
            "the account's data-residency rules or the request's headers do not allow, by what is "
            "known of that region's law now."
        )


def describe_narrowing(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """What the headers allow of regions and jurisdictions: the same however it is written.

    Raises: as `read_wishes`.
    """
    wishes = read_wishes(headers)
    lists = (wishes.regions, wishes.jurisdictions)
    return msgspec.json.encode([None if one is None else sorted(one) for one in lists])
