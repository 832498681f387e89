"""Plays a trace against nodes under one policy, event by event.

Deterministic: events of the same moment happen in the order in which they were scheduled.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from benchmarks.standby.policies import (
    Clairvoyant,
    LeastFrequent,
    LeastRecent,
    Planned,
    PlanningController,
)
from benchmarks.standby.simulated_node import Evictor, NodeShape, SimulatedNode, Tally
from benchmarks.standby.traces import SimArrival, SimModel
from contracts.ids import RegionId
from hot_standby.settings import StandbySettings

OURS: Final = "planner"
POLICIES: Final = ("LRU", "LFU", "knows the future", OURS)
_WAY_S: Final = 0.08
"""Between two regions, there and back."""


@dataclass(frozen=True, slots=True)
class FleetShape:
    """The nodes of a simulation."""

    regions: tuple[RegionId, ...]
    nodes_per_region: int
    node: NodeShape


@dataclass(slots=True)
class Agenda:
    """What happens when."""

    events: list[tuple[float, int, Callable[[float], None]]] = field(default_factory=list)
    num_events: int = 0
    now_s: float = 0.0

    def at(self, at_s: float, act: Callable[[float], None]) -> None:
        """Schedules `act`."""
        self.num_events += 1
        heapq.heappush(self.events, (at_s, self.num_events, act))

    def play(self) -> None:
        """Everything that is scheduled happens, and what comes of it."""
        while self.events:
            self.now_s, _, act = heapq.heappop(self.events)
            act(self.now_s)


def measure_latency_s(entry: RegionId, region: RegionId) -> float:
    """There and back."""
    return 0.0 if entry == region else _WAY_S


def simulate(
    policy: str,
    trace: list[SimArrival],
    models: list[SimModel],
    fleet: FleetShape,
    settings: StandbySettings,
    warm_up_s: float = 0.0,
) -> Tally:
    """What the requests of `trace` met with."""
    agenda, tally = Agenda(), Tally(warm_up_s)
    nodes = [
        SimulatedNode(
            f"{region}-{place}",
            region,
            models,
            fleet.node,
            _create_evictor(policy, trace, agenda),
            tally,
            agenda.at,
        )
        for region in fleet.regions
        for place in range(fleet.nodes_per_region)
    ]
    controller = PlanningController(nodes, measure_latency_s, settings)
    for arrival in trace:
        agenda.at(arrival.at_s, _create_arrival(arrival, nodes, controller))
    if policy == OURS:
        end_s = trace[-1].at_s
        for tick in range(int(end_s / settings.period_s)):
            agenda.at(tick * settings.period_s, controller.plan)
    agenda.play()
    return tally


def _create_evictor(policy: str, trace: list[SimArrival], agenda: Agenda) -> Evictor:
    """Who says what leaves under one of `POLICIES`."""
    match policy:
        case "LRU":
            return LeastRecent()
        case "LFU":
            return LeastFrequent()
        case "knows the future":
            return Clairvoyant(trace, lambda: agenda.now_s)
        case _:
            return Planned()


def _create_arrival(
    arrival: SimArrival, nodes: list[SimulatedNode], controller: PlanningController
) -> Callable[[float], None]:
    """The request goes to whoever answers first: the production router's rule in short."""

    def act(now_s: float) -> None:
        controller.note(arrival)
        lawful = [n for n in nodes if arrival.allowed is None or n.region in arrival.allowed]
        chosen = min(
            lawful,
            key=lambda node: (
                node.estimate_wake_s(arrival.model)
                + measure_latency_s(arrival.entry, node.region)
                + _count_load(node) * 0.01,
                node.node_id,
            ),
        )
        chosen.arrive(arrival, now_s)

    return act


def _count_load(node: SimulatedNode) -> int:
    """Requests that run or wait there."""
    return sum(state.num_running + len(state.waiting) for state in node.states.values())
