"""Why requests went where they went: the latest decisions of this gateway, in memory alone.

Owns a ring of a bounded size; the router's own words, without prompts. Must not know how decisions
are made (`gateway.routing.choose_node`) nor who looks at them. Read next: `gateway.attempts`.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from contracts.errors import ServiceError
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
    refusal: ServiceError | None = None


class Decisions:
    """The latest ones; belongs to one event loop."""

    def __init__(self) -> None:
        """None yet."""
        self._ring: deque[Decision] = deque(maxlen=MAX_DECISIONS)

    def note(
        self,
        unix_s: float,
        request: tuple[RequestId, AccountId],
        model: ModelName,
        attempt: int,
        outcome: RoutePlan | ServiceError,
    ) -> None:
        """One more; the oldest one makes room."""
        plan = outcome if isinstance(outcome, RoutePlan) else None
        refusal = None if isinstance(outcome, RoutePlan) else outcome
        self._ring.append(Decision(unix_s, *request, model, attempt, plan, refusal))

    def list_newest(self) -> Iterator[Decision]:
        """All of them, the newest first."""
        return reversed(self._ring)
