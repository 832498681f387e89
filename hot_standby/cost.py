"""What a miss costs, and what it is worth to have a model nearer on one node.

Pure arithmetic; every number is seconds of waiting, weighed by the class of service. A place is
worth what the demands that may use it would wait less. Read next: `hot_standby.placement_planner`.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from contracts.ids import ModelName, NodeId
from contracts.placement import ServiceClass, Tier
from hot_standby.demand import Demand
from hot_standby.fleet_state import FleetState, NodeState

CLASS_WEIGHTS: Final[Mapping[ServiceClass, float]] = {
    ServiceClass.ALWAYS_HOT: 16.0,
    ServiceClass.WARM: 4.0,
    ServiceClass.BEST_EFFORT: 1.0,
}
NOWHERE_S: Final = 60.0
"""What a demand is taken to wait that no node may serve."""


class Standing:
    """How long each demand would wait with what has been placed so far; one per plan."""

    def __init__(
        self, state: FleetState, demands: Iterable[Demand], preference_s: float = 0.0
    ) -> None:
        """Every model is as far away as the planner found it. `preference_s`: the wait that being
        served elsewhere than one prefers is taken for.
        """
        self._state = state
        self._preference_s = preference_s
        self._by_model: dict[ModelName, list[Demand]] = {}
        for demand in demands:
            self._by_model.setdefault(demand.key.model, []).append(demand)
        self._waits_s: dict[int, float] = {}

    def list_demands(self, model: ModelName) -> list[Demand]:
        """What asks for the model."""
        return self._by_model.get(model, [])

    def estimate_gain(self, node: NodeState, model: ModelName, tier: Tier) -> float:
        """Seconds of expected waiting that are saved by the model's being in `tier` there."""
        gain = 0.0
        for demand in self.list_demands(model):
            if demand.key.may_use(node.region):
                before_s = self._waits_s.get(id(demand), NOWHERE_S)
                after_s = self._estimate_wait_s(demand, node, tier)
                if after_s < before_s:
                    gain += _get_imminence(demand, tier) * (
                        before_s * demand.count_waiting(before_s)
                        - after_s * demand.count_waiting(after_s)
                    )
        return gain * CLASS_WEIGHTS[node.models[model].service_class]

    def place(self, node: NodeState, model: ModelName, tier: Tier) -> None:
        """Counts on the model's being in `tier` there."""
        for demand in self.list_demands(model):
            if demand.key.may_use(node.region):
                wait_s = self._estimate_wait_s(demand, node, tier)
                self._waits_s[id(demand)] = min(self._waits_s.get(id(demand), NOWHERE_S), wait_s)

    def find_imminence(self, node: NodeState, model: ModelName, tier: Tier) -> float:
        """How soon somebody will ask for the model who may come here, from 0 to 1, by the patience
        that goes with `tier`.
        """
        nobody = 1.0
        for demand in self.list_demands(model):
            if demand.key.may_use(node.region):
                nobody *= 1 - _get_imminence(demand, tier)
        return 1 - nobody

    def _estimate_wait_s(self, demand: Demand, node: NodeState, tier: Tier) -> float:
        """From the request's entry to the model's first step there, or what that is as bad as."""
        way_s = self._state.measure_latency_s(demand.key.entry, node.region)
        if demand.key.has_rather(node.region):
            way_s += self._preference_s
        bytes_ = node.models[demand.key.model].weights_bytes
        return way_s + node.speeds.estimate_wake_s(bytes_, tier)


def _get_imminence(demand: Demand, tier: Tier) -> float:
    """How soon the demand will be there, as far as `tier` cares."""
    return demand.imminence if tier is Tier.GPU else demand.host_imminence


Place = tuple[NodeId, ModelName]
"""A model on a node."""
