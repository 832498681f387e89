"""A node that moves weights: budgets, two ways to move on, requests that wait for a wake.

Its times are those of `MoveSpeeds`; one move at a time goes between host and device and one from
the disk, so that a wake in advance is paid for by whoever comes meanwhile. Must not know how
victims are chosen.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from benchmarks.standby.traces import SimArrival, SimModel
from contracts.fleet import ModelLoad
from contracts.fleet_view import NodeView
from contracts.ids import BootId, ModelName, NodeId, RegionId
from contracts.placement import MemoryUse, ModelPlacement, Tier
from hot_standby.tiers import MoveSpeeds


class Evictor(Protocol):
    """Who says what goes."""

    def choose(self, node: "SimulatedNode", candidates: list[ModelName]) -> ModelName:
        """The first of these to leave the tier that they are in."""
        ...

    def skips_host(
        self, node: "SimulatedNode", leaving: ModelName, others: list[ModelName]
    ) -> bool:
        """True when whoever leaves the device is worth less than all `others` in a full host."""
        ...


@dataclass(slots=True)
class SimState:
    """One model's place on the node."""

    model: SimModel
    tier: Tier = Tier.DISK
    num_running: int = 0
    waiting: list[SimArrival] = field(default_factory=list)
    last_used_s: float = -1.0
    num_uses: int = 0


@dataclass(slots=True)
class Tally:
    """What happened on all nodes."""

    warm_up_s: float = 0.0
    """What comes before is not counted."""
    waits_s: list[float] = field(default_factory=list)
    num_wakes: int = 0
    num_early: int = 0
    """Wakes that no request had asked for."""
    num_sleeps: int = 0


@dataclass(frozen=True, slots=True)
class NodeShape:
    """What a node holds, and how fast it moves weights."""

    device_bytes: int
    host_bytes: int
    speeds: MoveSpeeds


class SimulatedNode:
    """One node; `at` schedules what it does later."""

    def __init__(
        self,
        name: str,
        region: RegionId,
        models: list[SimModel],
        shape: NodeShape,
        evictor: Evictor,
        tally: Tally,
        at: Callable[[float, Callable[[float], None]], None],
    ) -> None:
        """All models are on disk."""
        self.node_id = NodeId(name)
        self.region = region
        self.states = {model.name: SimState(model) for model in models}
        self.targets: dict[ModelName, Tier] = {}
        """What a plan asks for; empty without a planner."""
        self.order: tuple[ModelName, ...] = ()
        self._shape = shape
        self._evictor = evictor
        self._tally = tally
        self._at = at
        self._speeds = shape.speeds
        self._free = {Tier.GPU: shape.device_bytes, Tier.HOST: shape.host_bytes}
        self._wanted: list[ModelName] = []
        self._moving: dict[Tier, ModelName] = {}
        """By the way that is taken: `HOST` between host and device, `DISK` from files."""

    def estimate_wake_s(self, name: ModelName) -> float:
        """Until a request for it could start."""
        state = self.states[name]
        return self._speeds.estimate_wake_s(state.model.weights_bytes, state.tier)

    def arrive(self, arrival: SimArrival, now_s: float) -> None:
        """A request comes."""
        state = self.states[arrival.model]
        state.last_used_s, state.num_uses = now_s, state.num_uses + 1
        if state.tier is Tier.GPU and not self._is_moving(arrival.model):
            self._begin(state, arrival, now_s)
            return
        state.waiting.append(arrival)
        if arrival.model not in self._wanted:
            self._wanted.append(arrival.model)
        self.act(now_s)

    def act(self, now_s: float) -> None:
        """Begins whatever move can begin: for those who wait, in order, then for the plan."""
        for name in list(self._wanted):
            state = self.states[name]
            if self._is_moving(name):
                continue
            if state.tier is Tier.GPU:
                self._start_all(state, now_s)
            elif not self._make_room(name, now_s):
                return
            elif _find_way(state.tier) not in self._moving:
                self._wake(name, now_s)
        if not self._wanted:
            self._follow_plan(now_s)

    def to_view(self, now_s: float) -> NodeView:
        """The node as a gateway would show it."""
        return NodeView(
            node_id=self.node_id,
            boot_id=BootId("boot"),
            region=self.region,
            jurisdiction="",
            latency_s=0.0,
            is_connected=True,
            is_draining=False,
            report_age_s=0.0,
            placements=tuple(self._describe(name, state) for name, state in self.states.items()),
            loads=tuple(
                ModelLoad(
                    name=name,
                    is_ready=state.tier is Tier.GPU,
                    num_running=state.num_running,
                    num_waiting=0,
                    num_blocks=0,
                    num_free_blocks=0,
                )
                for name, state in self.states.items()
            ),
            memory=MemoryUse(
                device_budget_bytes=self._shape.device_bytes,
                host_budget_bytes=self._shape.host_bytes,
            ),
        )

    # -- moves -----------------------------------------------------------------------------------

    def _follow_plan(self, now_s: float) -> None:
        """One step nearer to the plan on each way, as far as it displaces nobody."""
        for name, tier in self.targets.items():
            state = self.states[name]
            if state.tier is Tier.HOST and tier is Tier.DISK and self._is_idle(state):
                self._put(state, Tier.DISK)
        for name, tier in self.targets.items():
            state = self.states[name]
            if _find_way(state.tier) in self._moving or not self._is_idle(state):
                continue
            if state.tier is Tier.GPU and tier is not Tier.GPU:
                self._sleep(name, now_s)
            elif tier is Tier.GPU is not state.tier and self._fits(state, Tier.GPU):
                self._tally.num_early += now_s >= self._tally.warm_up_s
                self._wake(name, now_s)
            elif tier is Tier.HOST and state.tier is Tier.DISK and self._fits(state, Tier.HOST):
                self._move(name, Tier.HOST, self.estimate_wake_s(name), now_s)

    def _make_room(self, name: ModelName, now_s: float) -> bool:
        """True when it fits; else somebody leaves, or all are busy and have to be awaited."""
        if self._fits(self.states[name], Tier.GPU):
            return True
        candidates = self._list_idle(Tier.GPU)
        if candidates and Tier.HOST not in self._moving:
            self._sleep(self._evictor.choose(self, candidates), now_s)
        return False

    def _sleep(self, name: ModelName, now_s: float) -> None:
        state = self.states[name]
        self._tally.num_sleeps += now_s >= self._tally.warm_up_s
        while not self._fits(state, Tier.HOST):
            others = self._list_idle(Tier.HOST)
            if not others:
                return self._move(name, Tier.DISK, 0.0, now_s)
            if self._evictor.skips_host(self, name, others):
                return self._move(name, Tier.DISK, 0.0, now_s)
            self._put(self.states[self._evictor.choose(self, others)], Tier.DISK)
        took_s = self._speeds.estimate_wake_s(state.model.weights_bytes, Tier.HOST)
        return self._move(name, Tier.HOST, took_s, now_s)

    def _wake(self, name: ModelName, now_s: float) -> None:
        self._tally.num_wakes += now_s >= self._tally.warm_up_s
        self._move(name, Tier.GPU, self.estimate_wake_s(name), now_s)

    def _move(self, name: ModelName, tier: Tier, took_s: float, now_s: float) -> None:
        """Occupies the mover; memory is taken at the beginning and given back at the end."""
        state, size = self.states[name], self.states[name].model.weights_bytes
        before, way = state.tier, _find_way(state.tier)
        self._moving[way] = name
        if tier in self._free:
            self._free[tier] -= size

        def end(end_s: float) -> None:
            if before in self._free:
                self._free[before] += size
            state.tier = tier
            del self._moving[way]
            if tier is Tier.GPU:
                self._start_all(state, end_s)
            self.act(end_s)

        self._at(now_s + took_s, end)

    def _put(self, state: SimState, tier: Tier) -> None:
        """A move that takes no time."""
        for each, sign in ((state.tier, 1), (tier, -1)):
            if each in self._free:
                self._free[each] += sign * state.model.weights_bytes
        state.tier = tier

    # -- requests --------------------------------------------------------------------------------

    def _start_all(self, state: SimState, now_s: float) -> None:
        for arrival in state.waiting:
            self._begin(state, arrival, now_s)
        state.waiting.clear()
        if state.model.name in self._wanted:
            self._wanted.remove(state.model.name)

    def _begin(self, state: SimState, arrival: SimArrival, now_s: float) -> None:
        if arrival.at_s >= self._tally.warm_up_s:
            self._tally.waits_s.append(now_s - arrival.at_s)
        state.num_running += 1

        def end(end_s: float) -> None:
            state.num_running -= 1
            state.last_used_s = end_s
            self.act(end_s)

        self._at(now_s + arrival.service_s, end)

    def _is_moving(self, name: ModelName) -> bool:
        return name in self._moving.values()

    def _fits(self, state: SimState, tier: Tier) -> bool:
        return state.model.weights_bytes <= self._free[tier]

    def _is_idle(self, state: SimState) -> bool:
        return not state.num_running and not state.waiting and not self._is_moving(state.model.name)

    def _list_idle(self, tier: Tier) -> list[ModelName]:
        found: Iterable[tuple[ModelName, SimState]] = self.states.items()
        return [name for name, state in found if state.tier is tier and self._is_idle(state)]

    def _describe(self, name: ModelName, state: SimState) -> ModelPlacement:
        return ModelPlacement(
            name=name,
            tier=state.tier,
            weights_bytes=state.model.weights_bytes,
            kv_bytes=0,
            is_moving=self._is_moving(name),
            wake_s=self.estimate_wake_s(name),
            num_waiting=len(state.waiting),
        )


def _find_way(tier: Tier) -> Tier:
    """Which way leads out of `tier`."""
    return Tier.HOST if tier in (Tier.GPU, Tier.HOST) else Tier.DISK
