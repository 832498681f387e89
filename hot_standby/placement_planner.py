"""Which weights should be where: fleet, demand and rules in, one plan per node out.

Pure: no clock, no I/O, no chance; the same input gives the same plans. In order: what is in use and
what is promised, replicas that bursts need, then whoever saves most waiting per byte, first on the
devices, then in the hosts' memory. Read next: `hot_standby.cost`, `hot_standby.prewarm`,
`hot_standby.eviction`.
"""

import heapq
from collections.abc import Iterable, Iterator
from typing import Final

from contracts.ids import ModelName, RegionId
from contracts.placement import PlacementPlan, PlacementTarget, ServiceClass, Tier
from hot_standby.cost import Standing
from hot_standby.demand import Demand
from hot_standby.draft import Draft
from hot_standby.eviction import order_eviction, send_ahead
from hot_standby.fleet_state import FleetState, NodeState
from hot_standby.prewarm import is_worth_moving, list_replicas
from hot_standby.settings import PlannerSettings
from hot_standby.tiers import NEARNESS

_PROMISED: Final = float("inf")


def plan_placement(
    state: FleetState,
    demands: Iterable[Demand],
    settings: PlannerSettings,
    now_s: float,
    number: int,
) -> tuple[PlacementPlan, ...]:
    """A plan for every node, in order of the nodes.

    `now_s` is in seconds since 1970, for rules that end; `number` must grow from call to call.
    """
    planner = _Planner(state, demands, settings, now_s)
    planner.keep_what_is_used()
    planner.keep_promises()
    planner.add_replicas()
    planner.expect_near()
    planner.fill_devices()
    planner.let_stay(Tier.GPU)
    for node in state.nodes:
        send_ahead(planner.draft, planner.standing, node)
    planner.fill_hosts()
    planner.let_stay(Tier.HOST)
    planner.use_spare_room()
    planner.place_the_rest()
    return tuple(planner.describe(node, number) for node in state.nodes)


class _Planner:
    """One plan of the whole fleet in the making."""

    def __init__(
        self,
        state: FleetState,
        demands: Iterable[Demand],
        settings: PlannerSettings,
        now_s: float,
    ) -> None:
        """Everything is on disk, as far as requests could count on it."""
        self._state = state
        self._settings = settings
        self._now_s = now_s
        self.draft = Draft(state)
        self.standing = Standing(state, demands, settings.preference_s)
        for node in state.nodes:
            for name, model in node.models.items():
                is_remote = model.tier is Tier.REMOTE
                self.standing.place(node, name, Tier.REMOTE if is_remote else Tier.DISK)

    def keep_what_is_used(self) -> None:
        """Models with requests stay, or come, where these are."""
        for node in self._state.nodes:
            by_tier = sorted(node.models, key=lambda name: NEARNESS[node.models[name].tier])
            for name in by_tier:
                if node.models[name].num_in_flight:
                    self._take(node, name, Tier.GPU)

    def keep_promises(self) -> None:
        """Pins and classes of service: one place in every region that may have one."""
        for name in sorted({name for node in self._state.nodes for name in node.models}):
            tier = self._find_promise(name)
            if tier is None:
                continue
            for region in sorted({node.region for node in self._state.nodes}):
                able = self._list_keepers(region, name, tier)
                next((node for node in able if self._take(node, name, tier)), None)

    def add_replicas(self) -> None:
        """A burst that is more than its replicas should have gets another."""
        for name, able, wanted in list_replicas(self._state, self.standing, self._settings):
            num_placed = 0
            for node in able:
                if num_placed == wanted:
                    break
                num_placed += self._may_come(node, name) and self._take(node, name, Tier.GPU)

    def expect_near(self) -> None:
        """Counts on the host's memory for whoever will find room there or on the device: what a
        place on the device saves is the way from there, and not from the disk.
        """
        free = {node.node_id: self.draft.measure_free(node) for node in self._state.nodes}
        for node, name, worth in self._list_by_worth(Tier.HOST):
            size = node.models[name].weights_bytes
            if worth > 0 and size <= free[node.node_id]:
                free[node.node_id] -= size
                self.standing.place(node, name, Tier.HOST)
                self.draft.near_worth[node.node_id, name] = worth

    def fill_devices(self) -> None:
        """Gives the room on the devices to whoever saves most waiting per byte."""
        for node, name, worth in self._list_by_worth(Tier.GPU):
            if worth > 0 and self.draft.take(node, name, Tier.GPU, worth):
                self.standing.place(node, name, Tier.GPU)

    def fill_hosts(self) -> None:
        """The rest of those that are to be near, the most worth first."""
        worths = self.draft.near_worth
        nodes = {node.node_id: node for node in self._state.nodes}
        for node_id, name in sorted(worths, key=lambda place: (-worths[place], place)):
            self.draft.take(nodes[node_id], name, Tier.HOST, worths[node_id, name])

    def _list_by_worth(self, tier: Tier) -> Iterator[tuple[NodeState, ModelName, float]]:
        """Places in `tier` that could be had, the best first.

        What a place saves only shrinks as others are taken, so that the best of a heap whose worth
        still holds is the best of all.
        """
        heap: list[tuple[float, str, str, NodeState, ModelName]] = []
        for node in self._state.nodes:
            for name in node.models:
                if self.draft.is_placed(node, name, tier) or not self._may_come(node, name):
                    continue
                if is_worth_moving(self.standing, node, name, tier, self._settings):
                    worth = self._weigh(node, name, tier)
                    heap.append((-worth, node.node_id, name, node, name))
        heapq.heapify(heap)
        while heap:
            *_, node, name = heapq.heappop(heap)
            worth = self._weigh(node, name, tier)
            if heap and -worth > heap[0][0]:
                heapq.heappush(heap, (-worth, node.node_id, name, node, name))
            else:
                yield node, name, worth

    def let_stay(self, tier: Tier) -> None:
        """What nobody wants stays where it is while there is room."""
        for node in self._state.nodes:
            for name, model in node.models.items():
                is_near = NEARNESS[model.tier] <= NEARNESS[tier]
                if is_near and self._find_cap(name) is None:
                    self.draft.take(node, name, tier, 0.0)

    def use_spare_room(self) -> None:
        """Memory of a host that nobody has asked for is worth most with weights in it.

        What those on the device will need when they sleep is not spare.
        """
        for node in self._state.nodes:
            for name in node.models:
                if self._may_come(node, name) and self.draft.has_spare_room(node, name):
                    self.draft.take(node, name, Tier.HOST, 0.0)

    def place_the_rest(self) -> None:
        """All others need no memory."""
        for node in self._state.nodes:
            for name, model in node.models.items():
                is_remote = model.tier is Tier.REMOTE
                self.draft.take(node, name, Tier.REMOTE if is_remote else Tier.DISK, 0.0)

    def describe(self, node: NodeState, number: int) -> PlacementPlan:
        """The node's own part."""
        rules = self._state.rules
        targets = tuple(
            PlacementTarget(
                name=name,
                tier=self.draft.tiers[node.node_id, name],
                is_pinned=name in rules and rules[name].is_pinned(self._now_s),
            )
            for name in sorted(node.models)
        )
        return PlacementPlan(
            node_id=node.node_id,
            boot_id=node.boot_id,
            number=number,
            targets=targets,
            eviction_order=order_eviction(self.draft, node),
        )

    # -- parts -----------------------------------------------------------------------------------

    def _take(self, node: NodeState, name: ModelName, tier: Tier) -> bool:
        """Gives a place that is promised; False without the room."""
        is_taken = self.draft.take(node, name, tier, _PROMISED)
        if is_taken:
            self.standing.place(node, name, tier)
        return is_taken

    def _weigh(self, node: NodeState, name: ModelName, tier: Tier) -> float:
        """Seconds saved per byte by the place; more for whoever has it already."""
        model = node.models[name]
        size = model.device_bytes if tier is Tier.GPU else model.weights_bytes
        is_here = NEARNESS[model.tier] <= NEARNESS[tier]
        gain = self.standing.estimate_gain(node, name, tier) / max(size, 1)
        return gain * (1 + self._settings.hysteresis) if is_here else gain

    def _find_promise(self, name: ModelName) -> Tier | None:
        """The tier that the model is promised, if any."""
        rule = self._state.rules.get(name)
        wanted = rule.find_tier(self._now_s) if rule is not None else None
        if wanted in (Tier.GPU, Tier.HOST):
            return wanted
        classes = {n.models[name].service_class for n in self._state.nodes if name in n.models}
        if wanted is None and ServiceClass.ALWAYS_HOT in classes:
            return Tier.GPU
        return Tier.HOST if wanted is None and ServiceClass.WARM in classes else None

    def _find_cap(self, name: ModelName) -> Tier | None:
        """The nearest tier that an operator lets the model have without a request."""
        rule = self._state.rules.get(name)
        wanted = rule.find_tier(self._now_s) if rule is not None else None
        return wanted if wanted in (Tier.DISK, Tier.REMOTE) else None

    def _may_come(self, node: NodeState, name: ModelName) -> bool:
        """False for what operators have sent away, and where none of its requests may go."""
        return self._find_cap(name) is None and self._may_use(node, name)

    def _may_use(self, node: NodeState, name: ModelName) -> bool:
        """True where the law lets some request for the model go, or where none is known yet."""
        demands = self.standing.list_demands(name)
        return not demands or any(demand.key.may_use(node.region) for demand in demands)

    def _list_keepers(self, region: RegionId, name: ModelName, tier: Tier) -> list[NodeState]:
        """Who could keep a promise in a region, best first: whoever has it so already, is near it,
        has most room.
        """
        able = [
            node
            for node in self._state.nodes
            if node.region == region and name in node.models and self._may_use(node, name)
        ]
        return sorted(
            able,
            key=lambda node: (
                not self.draft.is_placed(node, name, tier),
                NEARNESS[node.models[name].tier],
                -self.draft.get_device_free(node),
                node.node_id,
            ),
        )
