"""A node's plan with an operator's rule in it, made where no planner is asked.

Pure. Owns the arithmetic of one node's device; whoever plans for the fleet knows better and
replaces the outcome. Read next: `gateway.routing.placement_desk`.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from contracts.ids import ModelName
from contracts.placement import MemoryUse, ModelPlacement, PlacementPlan, PlacementTarget, Tier

DEPTHS: Final = {Tier.GPU: 0, Tier.HOST: 1, Tier.DISK: 2, Tier.REMOTE: 3}


def amend(
    plan: PlacementPlan,
    wanted: PlacementTarget,
    models: Mapping[ModelName, ModelPlacement],
    memory: MemoryUse,
) -> PlacementPlan:
    """The plan with `wanted` in it; who is pinned stays, others make room for it in their order."""
    targets = {target.name: target for target in plan.targets} | {wanted.name: wanted}
    order = [name for name in plan.eviction_order if name != wanted.name]
    if wanted.tier is Tier.GPU:
        unnamed = [name for name in targets if name not in plan.eviction_order]
        _make_room(targets, [*unnamed, *order], wanted.name, models, memory)
        order.append(wanted.name)
    return msgspec.structs.replace(
        plan, targets=tuple(targets.values()), eviction_order=tuple(order)
    )


def release(plan: PlacementPlan, name: ModelName) -> PlacementPlan:
    """The plan without a pin of `name`, which stays where it is until somebody needs its room."""
    targets = tuple(
        msgspec.structs.replace(target, is_pinned=False) if target.name == name else target
        for target in plan.targets
    )
    return msgspec.structs.replace(plan, targets=targets)


def _make_room(
    targets: dict[ModelName, PlacementTarget],
    leaving: list[ModelName],
    kept: ModelName,
    models: Mapping[ModelName, ModelPlacement],
    memory: MemoryUse,
) -> None:
    """Sends models of `leaving` to the host until all that are to be on the device fit there."""
    sizes = {name: model.weights_bytes + model.kv_bytes for name, model in models.items()}
    held = sum(sizes.get(name, 0) for name, target in targets.items() if target.tier is Tier.GPU)
    for name in leaving:
        if not memory.device_budget_bytes or held <= memory.device_budget_bytes:
            return
        target = targets.get(name)
        if target is None or target.tier is not Tier.GPU or target.is_pinned or name == kept:
            continue
        targets[name] = msgspec.structs.replace(target, tier=Tier.HOST)
        held -= sizes.get(name, 0)
