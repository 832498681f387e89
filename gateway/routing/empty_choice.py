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
from contracts.fleet import ModelCard
from contracts.ids import ModelName
from gateway.routing.route_plan import NodeSnapshot, Rejection, RouteNeed, is_lawful

_NOT_FOR_THIS_ACCOUNT: Final = frozenset(
    {Rejection.RETENTION, Rejection.RESIDENCY, Rejection.MODEL_ABSENT, Rejection.ADAPTER}
)
_ONE_BY_ONE: Final = frozenset({Rejection.PROMPTS, Rejection.RESIDENCY, Rejection.MODEL_ABSENT})
_HEEDLESS: Final = frozenset({Rejection.BAD_WORDS, Rejection.RESIDENCY, Rejection.MODEL_ABSENT})
_LACK_OF_CAPACITY: Final = frozenset({Rejection.SATURATED, Rejection.BUSY, Rejection.REPORT_STALE})


def explain_empty_choice(
    nodes: Sequence[NodeSnapshot], need: RouteNeed, reasons: set[Rejection]
) -> ServiceError:
    """The error that tells the client most about an empty choice."""
    model = need.model
    holders = [node for node in nodes if model in node.cards]
    takers = [node for node in holders if takes_adapter(node.cards[model], need)]
    if not any(is_lawful(node, need) for node in takers):
        if Rejection.UNKNOWN in reasons and _may_be_lawful_yet(need):
            return NoEndpoint("Not every node has been reached yet, please try again.")
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


def takes_adapter(card: ModelCard, need: RouteNeed) -> bool:
    """True when whoever offers `card` can compute the request with its adapter, if it has one."""
    return need.adapter is None or card.max_adapter_rank >= need.adapter.rank


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
