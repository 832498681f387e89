"""What a client is told when no node comes into question.

Pure. Owns the rule that the law is named first: an account whose rules allow no region that has the
model is told so, and is never served elsewhere. Read next: `gateway.routing.choose_node`.
"""

from collections.abc import Sequence
from typing import Final

from contracts.errors import (
    ModelFailed,
    NoEndpoint,
    PoolSaturated,
    ResidencyViolation,
    ServiceError,
    UnknownModel,
    UnsupportedFeature,
)
from gateway.routing.route_plan import NodeSnapshot, Rejection, RouteNeed

_NOT_FOR_THIS_ACCOUNT: Final = frozenset(
    {Rejection.RETENTION, Rejection.RESIDENCY, Rejection.MODEL_ABSENT}
)
_LACK_OF_CAPACITY: Final = frozenset({Rejection.SATURATED, Rejection.BUSY, Rejection.REPORT_STALE})


def explain_empty_choice(
    nodes: Sequence[NodeSnapshot], need: RouteNeed, reasons: set[Rejection]
) -> ServiceError:
    """The error that tells the client most about an empty choice."""
    model = need.model
    holders = [node for node in nodes if model in node.cards]
    if not any(is_lawful(node, need) for node in holders):
        if need.allowed_regions != () and Rejection.UNKNOWN in reasons:
            return NoEndpoint("Not every node has been reached yet, please try again.")
        is_lawful_somewhere = any(is_lawful(node, need) for node in nodes)
        if need.allowed_regions is not None and (holders or not is_lawful_somewhere):
            return ResidencyViolation(
                "The account's data-residency rules, and the regions or jurisdictions that the "
                "request asks for, allow no region that serves this model."
            )
    if not holders and any(model in node.failed and is_lawful(node, need) for node in nodes):
        return ModelFailed(f"The model {model} failed to load.", param="model")
    if not holders:
        return UnknownModel(f"There is no model named {model}.", param="model")
    if Rejection.RETENTION in reasons and reasons <= _NOT_FOR_THIS_ACCOUNT:
        return UnsupportedFeature(
            "The account's retention does not allow what every node that serves this model may do: "
            "keep something of a request.",
            param="model",
        )
    if reasons & _LACK_OF_CAPACITY:
        return PoolSaturated("Capacity temporarily exceeded, please try again.")
    return NoEndpoint("No node can serve this model right now, please try again.")


def is_lawful(node: NodeSnapshot, need: RouteNeed) -> bool:
    """True when the account's data may go to `node`."""
    return node.region is not None and (
        need.allowed_regions is None or node.region in need.allowed_regions
    )
