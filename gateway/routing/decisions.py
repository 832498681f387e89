"""Why requests went where they went: the latest decisions of this gateway, in memory alone.

Owns a ring of a bounded size; the router's own words, without prompts: a refusal is kept as its
sentence, for an error that was thrown holds on to the request it came from. Must not know how
decisions are made (`gateway.routing.choose_node`) nor who looks at them. Read next:
`gateway.attempts`.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from contracts.ids import AccountId, ModelName, RequestId
from gateway.routing.route_plan import RoutePlan

MAX_DECISIONS: Final = 500


@dataclass(frozen=True, slots=True)
class Decision:
    """Where one attempt at a request was sent, or why nowhere."""

    unix_s: float
    request_id: RequestId
    account_id: AccountId
    model: ModelName
    attempt: int
    """Counts from 1; 0: none was made."""
    plan: RoutePlan | None
    """None: no node could take it."""
    refusal: str = ""
    """Why none could."""


_Noted = tuple[float, tuple[RequestId, AccountId], ModelName, int, RoutePlan | str]


class Decisions:
    """The latest ones; belongs to one event loop.

    Requests only leave a tuple here; objects are made for whoever looks.
    """

    def __init__(self) -> None:
        """None yet."""
        self._ring: deque[_Noted] = deque(maxlen=MAX_DECISIONS)

    def note(
        self,
        unix_s: float,
        request: tuple[RequestId, AccountId],
        model: ModelName,
        attempt: int,
        outcome: RoutePlan | str,
    ) -> None:
        """One more, or why there is none; the oldest one makes room."""
        self._ring.append((unix_s, request, model, attempt, outcome))

    def list_newest(self) -> Iterator[Decision]:
        """All of them, the newest first."""
        return map(_to_decision, reversed(self._ring))


def _to_decision(noted: _Noted) -> Decision:
    """What was noted, under its names."""
    unix_s, request, model, attempt, outcome = noted
    if isinstance(outcome, RoutePlan):
        return Decision(unix_s, *request, model, attempt, outcome)
    return Decision(unix_s, *request, model, attempt, None, outcome)
