"""A plan in the making: what has its place already and what room is left.

Owns the arithmetic of budgets; must not know why something is placed.
Read next: `hot_standby.placement_planner`.
"""

from contracts.ids import ModelName, NodeId
from contracts.placement import Tier
from hot_standby.cost import Place
from hot_standby.fleet_state import FleetState, NodeState
from hot_standby.tiers import NEARNESS


class Draft:
    """Tiers by place, within every node's budgets; one per plan."""

    def __init__(self, state: FleetState) -> None:
        """Nothing has a place yet."""
        self.tiers: dict[Place, Tier] = {}
        self.worth: dict[Place, float] = {}
        """Seconds of waiting that a place saves per byte; who is worth least makes room first."""
        self.near_worth: dict[Place, float] = {}
        """The same for being near at all, on the device or in the host's memory."""
        self._device_free: dict[NodeId, float] = {}
        self._host_free: dict[NodeId, float] = {}
        for node in state.nodes:
            memory = node.memory
            self._device_free[node.node_id] = memory.device_budget_bytes or float("inf")
            self._host_free[node.node_id] = memory.host_budget_bytes or float("inf")

    def get_device_free(self, node: NodeState) -> float:
        """Bytes of the device that are not given away yet."""
        return self._device_free[node.node_id]

    def measure_free(self, node: NodeState) -> float:
        """Bytes of device and host together that are not given away yet.

        Less the room of one model: a swap needs it, for who leaves comes before who came is gone.
        """
        swap = max((model.weights_bytes for model in node.models.values()), default=0)
        return self._device_free[node.node_id] + self._host_free[node.node_id] - swap

    def list_pushed(self, node: NodeState, model: ModelName) -> list[ModelName]:
        """Who finds no room in the host any more once `model` goes there too."""
        expected = {
            name: worth
            for (node_id, name), worth in self.near_worth.items()
            if node_id == node.node_id and not self.is_placed(node, name, Tier.HOST)
        }
        room = self._host_free[node.node_id] - node.models[model].weights_bytes
        room -= sum(node.models[name].weights_bytes for name in expected)
        pushed: list[ModelName] = []
        for name in sorted(expected, key=lambda name: (expected[name], name)):
            if room >= 0:
                break
            room += node.models[name].weights_bytes
            pushed.append(name)
        return pushed

    def has_spare_room(self, node: NodeState, model: ModelName) -> bool:
        """True when the host could hold the model even with all asleep that are on the device."""
        sleepers = sum(
            state.weights_bytes
            for name, state in node.models.items()
            if self.tiers.get((node.node_id, name)) is Tier.GPU
        )
        size = node.models[model].weights_bytes
        return sleepers + size <= self._host_free[node.node_id]

    def is_placed(self, node: NodeState, model: ModelName, tier: Tier) -> bool:
        """True when the model has its place there, in `tier` or nearer."""
        placed = self.tiers.get((node.node_id, model))
        return placed is not None and NEARNESS[placed] <= NEARNESS[tier]

    def take(self, node: NodeState, model: ModelName, tier: Tier, worth: float) -> bool:
        """Gives the model its place, or a nearer one than it had; False without the room."""
        if self.is_placed(node, model, tier):
            return True
        state = node.models[model]
        if tier is Tier.GPU:
            if state.device_bytes > self._device_free[node.node_id]:
                return False
            self._leave(node, model)
            self._device_free[node.node_id] -= state.device_bytes
        elif tier is Tier.HOST:
            if state.weights_bytes > self._host_free[node.node_id]:
                return False
            self._host_free[node.node_id] -= state.weights_bytes
        self.tiers[node.node_id, model] = tier
        self.worth[node.node_id, model] = worth
        return True

    def move_away(self, node: NodeState, model: ModelName) -> None:
        """Takes the model's place on the device from it; it has none then."""
        self._device_free[node.node_id] += node.models[model].device_bytes
        del self.tiers[node.node_id, model]

    def _leave(self, node: NodeState, model: ModelName) -> None:
        """Gives back what a farther place of the model took."""
        if self.tiers.get((node.node_id, model)) is Tier.HOST:
            self._host_free[node.node_id] += node.models[model].weights_bytes
