"""What somebody who runs the fleet should look at now, in plain sentences.

Owns the sentences. Pure: reads what is known and changes nothing.
Read next: `gateway.routing.node_health`.
"""

from dataclasses import dataclass
from typing import Final

from gateway.routing.fleet import Fleet
from gateway.routing.route_plan import Rejection

_REPORT_LATE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Concern:
    """One thing."""

    subject: str
    text: str
    is_urgent: bool


def list_concerns(fleet: Fleet, now_s: float) -> list[Concern]:
    """Everything that is not as it should be, the urgent first."""
    concerns: list[Concern] = []
    troubled = fleet.health.list_troubled(now_s)
    for node in fleet.roster.snapshots:
        name = node.node_id
        if not node.is_connected:
            refusal = fleet.roster.find_refusal(name)
            told = "has never connected" if node.region is None else "is not connected"
            told = told if refusal is None else f"is refused: {refusal}"
            concerns.append(Concern(name, f"This node {told}.", True))
        elif now_s - node.reported_s > _REPORT_LATE_S:
            concerns.append(Concern(name, "This node has not reported for a while.", True))
        if node.is_drained:
            text = "This node is drained by an operator: it gets nothing new."
            concerns.append(Concern(name, text, False))
        elif node.is_draining:
            concerns.append(Concern(name, "This node is draining: it takes nothing new.", False))
        if name in troubled:
            is_open = troubled[name] is Rejection.BREAKER_OPEN
            text = "left alone after failures" if is_open else "on probation after failures"
            concerns.append(Concern(name, f"This node is {text}.", is_open))
        for model, reason in node.failed.items():
            concerns.append(Concern(name, f"{model} did not start: {reason}", True))
    if not fleet.roster.snapshots:
        concerns.append(Concern("Fleet", "No node is configured, so no model can answer.", True))
    return sorted(concerns, key=lambda concern: not concern.is_urgent)
