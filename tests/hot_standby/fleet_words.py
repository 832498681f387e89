"""Short words for fleets, demand and plans, so that planner tests read as sentences."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from contracts.fleet_view import PlacementRule
from contracts.ids import BootId, ModelName, NodeId, RegionId
from contracts.placement import MemoryUse, PlacementPlan, ServiceClass, Tier
from hot_standby.demand import Demand, DemandKey
from hot_standby.fleet_state import FleetState, ModelState, NodeState
from hot_standby.placement_planner import plan_placement
from hot_standby.settings import PlannerSettings

GIB = 1 << 30
NOW_S = 1_800_000_000.0
WEUR, WNAM = RegionId("weur"), RegionId("wnam")


def name_model(letter: str) -> ModelName:
    """A model's whole name."""
    return ModelName(f"@tests/{letter}")


def create_node(
    name: str = "n1",
    region: RegionId = WEUR,
    device: int = 3,
    host: int = 10,
    **tiers: Tier,
) -> NodeState:
    """A node with models of 1 GiB each by their letters; budgets in GiB."""
    return NodeState(
        NodeId(name),
        BootId("boot"),
        region,
        MemoryUse(device_budget_bytes=device * GIB, host_budget_bytes=host * GIB),
        {name_model(letter): ModelState(tier, GIB, 0) for letter, tier in sorted(tiers.items())},
    )


def change_model(node: NodeState, letter: str, **changes: object) -> NodeState:
    """The node with one model changed."""
    name = name_model(letter)
    model = replace(node.models[name], **changes)  # type: ignore[arg-type]
    return replace(node, models={**node.models, name: model})


def expect(
    letter: str,
    imminence: float,
    entry: RegionId = WEUR,
    allowed: tuple[RegionId, ...] | None = None,
    preferred: tuple[RegionId, ...] = (),
) -> Demand:
    """Demand for a model."""
    key = DemandKey(name_model(letter), entry, allowed, preferred)
    return Demand(key, imminence, max(imminence, 0.5), burst_per_s=0.0, burst_length=0.0)


def plan(
    nodes: Iterable[NodeState],
    *demands: Demand,
    rules: Iterable[PlacementRule] = (),
    settings: PlannerSettings | None = None,
) -> dict[str, dict[str, Tier]]:
    """Tiers by node and letter."""
    plans = plan_all(nodes, *demands, rules=rules, settings=settings)
    return {
        node_id: {target.name[-1]: target.tier for target in made.targets}
        for node_id, made in plans.items()
    }


def plan_all(
    nodes: Iterable[NodeState],
    *demands: Demand,
    rules: Iterable[PlacementRule] = (),
    settings: PlannerSettings | None = None,
) -> Mapping[str, PlacementPlan]:
    """Plans by node."""
    state = FleetState(
        tuple(nodes), {(WEUR, WNAM): 0.1, (WNAM, WEUR): 0.1}, {rule.model: rule for rule in rules}
    )
    made = plan_placement(state, demands, settings or PlannerSettings(), NOW_S, 1)
    return {plan.node_id: plan for plan in made}


def rule(
    letter: str,
    tier: Tier | None = None,
    until_unix_s: int | None = None,
    service_class: ServiceClass = ServiceClass.BEST_EFFORT,
) -> PlacementRule:
    """An operator's rule."""
    return PlacementRule(
        model=name_model(letter), tier=tier, until_unix_s=until_unix_s, service_class=service_class
    )
