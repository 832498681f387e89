"""What a request asks of nodes: its account's rules, its own wishes, and what it has to compute.

Owns the reading of rules and wishes into one `RouteNeed`, in which regions are named and nothing
else is law. Read next: `gateway.routing.locality` (prompts), `gateway.routing.region_policy`.
"""

from typing import Final

import msgspec

from contracts.errors import ResidencyViolation
from contracts.ids import ModelName, RegionId
from contracts.inference import GenerateRequest, NodeRequest
from gateway.fair_queue.waiter import rejects_waiting
from gateway.request_context import Asker, RequestContext
from gateway.routing.fleet import Fleet
from gateway.routing.prefix_keys import hash_owner
from gateway.routing.region_policy import (
    find_allowed,
    find_disputed,
    find_jurisdictions,
    find_narrowed,
    list_preferred,
)
from gateway.routing.residency_words import describe_residency
from gateway.routing.route_plan import RouteNeed
from gateway.routing.wishes import format_refusal, intersect, read_wishes
from tenancy.interfaces import Principal

_NOWHERE: Final = frozenset[RegionId]()


def describe_need(
    fleet: Fleet,
    context: RequestContext,
    request: NodeRequest,
    asker: Asker,
    num_bytes: int,
    *,
    has_choice: bool,
) -> RouteNeed:
    """What the request needs, which has `num_bytes` as it is sent; where it makes no difference,
    since but one node has its model and nobody asks why, without a look at the prompt.

    `context` is told whether the choice is to be explained. Raises: `InvalidRequest`.
    """
    principal = context.principal
    assert principal is not None
    wishes = read_wishes(asker.headers)
    context.wants_explanation = wishes.is_explained
    rules, laws = principal.region_rules, fleet.roster.laws
    allowed, jurisdictions, disputed = None, None, _NOWHERE
    if rules.is_bound or wishes.is_narrowing:
        allowed = find_narrowed(rules, wishes, laws)
        jurisdictions = find_jurisdictions(rules, wishes.jurisdictions)
        disputed = find_disputed(rules, wishes.jurisdictions, wishes.regions, laws)
    if not (has_choice or wishes.is_explained):
        generate = request if isinstance(request, GenerateRequest) else None
        return RouteNeed(
            request.model,
            allowed,
            jurisdictions=jurisdictions,
            disputed=disputed,
            generation=context.generation,
            laws=laws.version,
            num_prompts=1 if generate is None else 1 + len(generate.further_prompts),
            has_bad_words=generate is not None and bool(generate.bad_words),
            adapter=None if generate is None else generate.adapter,
            leaves_nothing=not principal.may_be_kept,
            owner=hash_owner(principal.cache_salt),
        )
    need = fleet.locality.describe(
        request,
        allowed,
        principal.cache_salt,
        principal.retention,
        wishes.session,
        context.generation,
    )
    return msgspec.structs.replace(
        need,
        jurisdictions=jurisdictions,
        disputed=disputed,
        preferred=list_preferred(rules, laws) if rules.prefers else (),
        laws=laws.version,
        may_wait=has_choice and not rejects_waiting(request),
        num_asked_tokens=count_asked_tokens(request),
        num_bytes=num_bytes if has_choice else 0,
    )


def narrow_need(fleet: Fleet, need: RouteNeed, current: Principal, generation: int) -> RouteNeed:
    """`need` with nothing that the account's rules do not allow in that generation, nor by what is
    said of the laws of regions now.
    """
    rules, laws = current.region_rules, fleet.roster.laws
    before, jurisdictions = need.allowed_regions, find_jurisdictions(rules, need.jurisdictions)
    allowed = intersect(before, find_allowed(rules, laws))
    if jurisdictions is not None:
        allowed = intersect(allowed, sorted(laws.list_regions(jurisdictions)))
    named = None if before is None else need.disputed.union(before)
    return msgspec.structs.replace(
        need,
        allowed_regions=allowed,
        jurisdictions=jurisdictions,
        disputed=find_disputed(rules, need.jurisdictions, named, laws),
        generation=generation,
        laws=laws.version,
    )


def explain_residency(fleet: Fleet, context: RequestContext, asker: Asker) -> ResidencyViolation:
    """The refusal of a request that may go to no region with its model, in its own words."""
    assert context.principal is not None
    wishes, rules = read_wishes(asker.headers), context.principal.region_rules
    return ResidencyViolation(describe_residency(rules, wishes, fleet.roster.laws))


def find_context_window(fleet: Fleet, context: RequestContext, model: ModelName) -> int:
    """The model's context in tokens, the longest that any node offers.

    Raises: what routing raises for a model that no node has.
    """
    window = fleet.roster.find_context_window(model)
    if window is not None:
        return window
    assert context.principal is not None
    rules = context.principal.region_rules
    allowed, jurisdictions = find_allowed(rules, fleet.roster.laws), find_jurisdictions(rules, None)
    raise fleet.explain_unoffered(RouteNeed(model, allowed, jurisdictions=jurisdictions))


def explain_refusal(fleet: Fleet, need: RouteNeed) -> bytes:
    """A header line that says why each node was passed over, or how many more there are."""
    return format_refusal(fleet.list_rejections(need), fleet.num_unexplained)


def count_asked_tokens(request: NodeRequest) -> int:
    """How many tokens a choice of the answer is to have room for, by the client's own word."""
    if not isinstance(request, GenerateRequest) or request.sampling.is_max_tokens_default:
        return 0
    return request.sampling.max_tokens or 0
