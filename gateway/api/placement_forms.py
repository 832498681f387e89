"""Plans and rules of where weights are, as operators and hot standby write them.

Owns the fields; what they mean is in `contracts.placement` and `contracts.fleet_view`.
"""

from typing import Annotated, Final

import msgspec

from contracts.fleet_view import PlacementRule
from contracts.ids import BootId, ModelName, NodeId
from contracts.node_roles import NodeRole, RoleWish
from contracts.placement import (
    MAX_PLANNED_MODELS,
    PlacementPlan,
    PlacementTarget,
    ServiceClass,
    Tier,
)
from gateway.api.forms import Form, FormReader

MAX_HOLD_S: Final = 30 * 86_400


class TargetForm(Form, frozen=True, kw_only=True):
    """Where one model should be."""

    name: ModelName
    tier: Tier
    is_pinned: bool = False


class RoleForm(Form, frozen=True, kw_only=True):
    """The role that a planner thinks right for a node."""

    role: NodeRole
    is_suggestion: bool = False
    """True: the node tells of it and stays what it is."""


class PlanPut(Form, frozen=True, kw_only=True):
    """What one node should do until it hears otherwise."""

    node_id: NodeId
    boot_id: BootId
    number: Annotated[int, msgspec.Meta(ge=0, lt=2**48)]
    targets: Annotated[tuple[TargetForm, ...], msgspec.Meta(max_length=MAX_PLANNED_MODELS)]
    eviction_order: Annotated[
        tuple[ModelName, ...], msgspec.Meta(max_length=MAX_PLANNED_MODELS)
    ] = ()
    role: RoleForm | None = None
    """Left out: nothing is said of it."""


class RuleSet(Form, frozen=True, kw_only=True):
    """What is wanted of one model."""

    model: ModelName
    service_class: ServiceClass = ServiceClass.BEST_EFFORT
    tier: Tier | None = None
    for_s: Annotated[int, msgspec.Meta(ge=1, le=MAX_HOLD_S)] | None = None
    """How long `tier` holds; left out: until the rule is ended."""


PLAN_PUT: Final = FormReader(PlanPut)
RULE_SET: Final = FormReader(RuleSet)


def to_plan(form: PlanPut) -> PlacementPlan:
    """The plan that `form` says."""
    return PlacementPlan(
        node_id=form.node_id,
        boot_id=form.boot_id,
        number=form.number,
        targets=tuple(
            PlacementTarget(name=target.name, tier=target.tier, is_pinned=target.is_pinned)
            for target in form.targets
        ),
        eviction_order=form.eviction_order,
        role=None
        if form.role is None
        else RoleWish(role=form.role.role, is_suggestion=form.role.is_suggestion),
    )


def to_rule(form: RuleSet, unix_s: float) -> PlacementRule:
    """The rule that `form` says, as of now."""
    return PlacementRule(
        model=form.model,
        service_class=form.service_class,
        tier=form.tier,
        until_unix_s=None if form.for_s is None else int(unix_s) + form.for_s,
    )
