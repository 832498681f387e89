"""Who comes nearer before a request asks for it: by demand, and where a replica is overrun.

Pure. Waking costs the same whether it was wanted or not, so that only what is likely enough moves
early. Read next: `hot_standby.placement_planner`.
"""

import math
from collections.abc import Iterator

from contracts.ids import ModelName, RegionId
from contracts.placement import Tier
from hot_standby.cost import Standing
from hot_standby.fleet_state import FleetState, NodeState
from hot_standby.settings import PlannerSettings
from hot_standby.tiers import NEARNESS


def is_worth_moving(
    standing: Standing, node: NodeState, model: ModelName, tier: Tier, settings: PlannerSettings
) -> bool:
    """True when the model is in `tier` or nearer now, or so likely wanted that it may come."""
    if NEARNESS[node.models[model].tier] <= NEARNESS[tier]:
        return True
    least = settings.prewarm_at if tier is Tier.GPU else settings.prewarm_host_at
    return standing.find_imminence(node, model, tier) >= least


def list_replicas(
    state: FleetState, standing: Standing, settings: PlannerSettings
) -> Iterator[tuple[ModelName, list[NodeState], int]]:
    """Models with more requests than their replicas of one region should have: who may take one
    more, best first, and how many of them are to.
    """
    for region, model in _list_regions(state):
        nodes = [n for n in state.nodes if n.region == region and model in n.models]
        in_flight = sum(node.models[model].num_in_flight for node in nodes)
        holders = [node for node in nodes if _is_held(node, model)]
        wanted = math.ceil(in_flight / settings.requests_per_replica)
        calm = math.ceil(in_flight / (settings.requests_per_replica * settings.calm_share))
        wanted = max(wanted, min(calm, len(holders)))
        if wanted <= 1:
            continue
        lawful = {
            node.node_id
            for node in state.nodes
            for demand in standing.list_demands(model)
            if demand.key.may_use(node.region) and demand.key.may_use(region)
        }
        able = [n for n in state.nodes if model in n.models and n.node_id in lawful]
        able.sort(
            key=lambda node: (
                not _is_held(node, model),
                state.measure_latency_s(region, node.region),
                NEARNESS[node.models[model].tier],
                _count_busy_bytes(node),
                node.node_id,
            )
        )
        yield model, able, wanted


def _list_regions(state: FleetState) -> list[tuple[RegionId, ModelName]]:
    """Where each model is being asked for."""
    found = {
        (node.region, name)
        for node in state.nodes
        for name, model in node.models.items()
        if model.num_in_flight
    }
    return sorted(found)


def _is_held(node: NodeState, model: ModelName) -> bool:
    """True when the model is on the device there."""
    return node.models[model].tier is Tier.GPU


def _count_busy_bytes(node: NodeState) -> int:
    """What models with requests take of the node's device."""
    return sum(model.device_bytes for model in node.models.values() if model.num_in_flight)
