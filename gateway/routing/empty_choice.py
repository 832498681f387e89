"""What a client is told when no node comes into question.

Pure. Owns the rule that the law is named first: an account whose rules allow no region that has the
model is told so, and is never served elsewhere. Read next: `gateway.routing.choose_node`.
"""

from collections.abc import Sequence
from typing import Final

from contracts.adapters import AdapterRef
from contracts.errors import (
    AdapterUnsupported,
    ModelFailed,
    NoEndpoint,
    PoolSaturated,
    ResidencyViolation,
    ServiceError,
    UnknownModel,
    UnsupportedFeature,
)
from contracts.ids import ModelName
from gateway.routing.route_plan import (
    FleetState,
    NodeSnapshot,
    Rejection,
    RouteNeed,
    is_lawful,
    takes_adapter,
)

_NOT_FOR_THIS_ACCOUNT: Final = frozenset(
    {Rejection.RETENTION, Rejection.RESIDENCY, Rejection.MODEL_ABSENT, Rejection.ADAPTER}
)
_ONE_BY_ONE: Final = frozenset({Rejection.PROMPTS, Rejection.RESIDENCY, Rejection.MODEL_ABSENT})
_HEEDLESS: Final = frozenset({Rejection.BAD_WORDS, Rejection.RESIDENCY, Rejection.MODEL_ABSENT})
_NOT_YET: Final = "Not every node has been reached yet, please try again."
_LACK_OF_CAPACITY: Final = frozenset({Rejection.SATURATED, Rejection.BUSY, Rejection.REPORT_STALE})


def explain_empty_choice(
    state: FleetState, need: RouteNeed, reasons: set[Rejection]
) -> ServiceError:
    """The error that tells the client most about an empty choice. `reasons` are those of nodes that
    were looked at. Neither law nor model is to blame where nodes are merely away.
    """
    list_kinds = state.list_kinds
    kinds = state.nodes.values() if list_kinds is None else list_kinds(need.model)
    if any(node.region is None for node in kinds):
        reasons = reasons | {Rejection.UNKNOWN}
    nodes = [*kinds, *state.absent]
    away = [node for node in state.absent if is_lawful(node, need)]
    if any(need.model in node.cards for node in away):
        reasons = reasons | {Rejection.UNREACHABLE}
    elif any(not node.cards for node in away) and _may_be_unheard(nodes, need):
        return NoEndpoint(_NOT_YET)
    return _explain(nodes, need, reasons)


def _may_be_unheard(nodes: Sequence[NodeSnapshot], need: RouteNeed) -> bool:
    """True where a node that has said nothing yet may be the one with the model: others have it
    where the law does not allow it, or nobody has said anything.
    """
    holders = [node for node in nodes if need.model in node.cards]
    if holders:
        return not any(is_lawful(node, need) for node in holders)
    return not any(node.cards for node in nodes)


def _explain(
    nodes: Sequence[NodeSnapshot], need: RouteNeed, reasons: set[Rejection]
) -> ServiceError:
    """The same of nodes that are told apart."""
    model = need.model
    holders = [node for node in nodes if model in node.cards]
    takers = [node for node in holders if takes_adapter(node.cards[model], need)]
    if not any(is_lawful(node, need) for node in takers):
        if Rejection.UNKNOWN in reasons and _may_be_lawful_yet(need):
            return NoEndpoint(_NOT_YET)
        disputed = sorted(need.disputed & {node.region for node in takers})
        if disputed:
            return NoEndpoint(
                "Nodes and operators differ on whose law holds where this model is served "
                f"({', '.join(disputed)}), please try again."
            )
        is_lawful_somewhere = any(is_lawful(node, need) for node in nodes)
        is_refused = takers or (holders and not any(is_lawful(node, need) for node in holders))
        if need.is_bound and (is_refused or not is_lawful_somewhere):
            return ResidencyViolation(
                "No region that this request may go to serves this model."  # `residency_words`: why
            )
    if not holders and any(model in node.failed and is_lawful(node, need) for node in nodes):
        return ModelFailed(f"The model {model} failed to load.", param="model")
    if not holders:
        return UnknownModel(f"There is no model named {model}.", param="model")
    if need.adapter is not None and not takers:
        return _explain_adapter(holders, model, need.adapter)
    if Rejection.RETENTION in reasons and reasons <= _NOT_FOR_THIS_ACCOUNT:
        return UnsupportedFeature(
            "The account's retention does not allow what every node that serves this model may do: "
            "keep something of a request.",
            param="model",
        )
    if Rejection.PROMPTS in reasons and reasons <= _ONE_BY_ONE:
        return UnsupportedFeature(
            "No node that serves this model takes so many prompts in one request.", param="prompt"
        )
    if Rejection.BAD_WORDS in reasons and reasons <= _HEEDLESS:
        return UnsupportedFeature(
            "No node that serves this model keeps words out of answers.", param="bad_words"
        )
    if reasons & _LACK_OF_CAPACITY:
        return PoolSaturated("Capacity temporarily exceeded, please try again.")
    return NoEndpoint("No node can serve this model right now, please try again.")


def _explain_adapter(
    holders: Sequence[NodeSnapshot], model: ModelName, adapter: AdapterRef
) -> ServiceError:
    """Why nobody who has the model can compute the adapter."""
    most = max(node.cards[model].max_adapter_rank for node in holders)
    if not most:
        return AdapterUnsupported("This model takes no LoRA adapters.", param="lora")
    return AdapterUnsupported(
        f"This model takes LoRA adapters of at most rank {most}, and this one has {adapter.rank}.",
        param="lora",
    )


def _may_be_lawful_yet(need: RouteNeed) -> bool:
    """True where a node that has said nothing yet may be one that the law allows: which regions lie
    in a jurisdiction is known once nodes have spoken.
    """
    return need.allowed_regions != () or bool(need.jurisdictions)
