"""Why the latest requests went where they went.

Owns the words in which the router's reasons are told. Read next: `gateway.routing.decisions`.
"""

from collections import Counter
from dataclasses import dataclass
from itertools import islice
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from gateway.auth.caller import Caller
from gateway.console.page_table import PageTable
from gateway.console.parts import ConsoleParts
from gateway.routing.decisions import MAX_DECISIONS, Decision
from gateway.routing.route_plan import Pick, Rejection

MAX_SHOWN: Final = 100
_PICKS: Final = {
    Pick.COST: "expected to answer first",
    Pick.PREFIX: "expected to answer first, with the beginning of the prompt in its cache",
    Pick.SESSION: "the session's node",
}
_REASONS: Final = {
    Rejection.UNKNOWN: "never heard of",
    Rejection.RESIDENCY: "outside the regions allowed",
    Rejection.MODEL_ABSENT: "without the model",
    Rejection.OTHER_REVISION: "with other weights",
    Rejection.CONTEXT: "with too short a context",
    Rejection.RETENTION: "may keep something of it",
    Rejection.UNREACHABLE: "unreachable",
    Rejection.DRAINING: "draining",
    Rejection.REPORT_STALE: "silent for too long",
    Rejection.SATURATED: "full",
    Rejection.BUSY: "busy",
    Rejection.BREAKER_OPEN: "left alone after failures",
    Rejection.ON_PROBATION: "on probation",
    Rejection.REFUSING: "refusing though they have room",
    Rejection.MODEL_NOT_READY: "not ready with the model",
    Rejection.PREFILL_ONLY: "there for prompts only",
}


@dataclass(frozen=True, slots=True)
class ShownDecision:
    """A decision in words."""

    decision: Decision
    why: str
    passed_over: tuple[str, ...]


class RoutingPage:
    """Reads the ring of decisions."""

    def __init__(self, parts: ConsoleParts) -> None:
        """`parts` have the fleet, which keeps them."""
        self._parts = parts

    def add_to(self, table: PageTable) -> None:
        """Its route."""
        table.show("routing", "/routing", self.show)

    async def show(self, request: Request, caller: Caller) -> Response:
        """The newest decisions, of one model or account if wanted."""
        query = request.query_params
        model, account_id = query.get("model", ""), query.get("account_id", "")
        wanted = (
            decision
            for decision in self._parts.fleet.decisions.list_newest()
            if model in ("", decision.model) and account_id in ("", decision.account_id)
        )
        return self._parts.renderer.show(
            request,
            caller,
            "routing.html",
            decisions=[explain(decision) for decision in islice(wanted, MAX_SHOWN)],
            models=[card.name for card in self._parts.fleet.roster.list_models()],
            model=model,
            account_id=account_id,
            num_kept=MAX_DECISIONS,
        )


def explain(decision: Decision) -> ShownDecision:
    """The decision in words."""
    plan = decision.plan
    if plan is None:
        return ShownDecision(decision, decision.refusal, ())
    counts = Counter(reason for _, reason in plan.rejected)
    passed_over = tuple(f"{count} {_REASONS[reason]}" for reason, count in counts.items())
    return ShownDecision(decision, _PICKS[plan.pick], passed_over)
