"""The production router behind the simulation: gateways, each with its own view of the nodes.

Reports reach gateways as often as they ask for; what one has sent since, only that gateway knows.
Read next: `gateway.routing.fleet`.
"""

import random
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

from benchmarks.routing.simulated_node import MODEL, SimulatedNode
from benchmarks.routing.traces import BYTES_PER_TOKEN, SimRequest
from contracts.errors import CapacityError
from contracts.ids import NodeId, RegionId
from gateway.routing.fleet import Fleet
from gateway.routing.law_table import LawTable
from gateway.routing.locality import Locality
from gateway.routing.regions import Region, RegionCatalogue
from gateway.routing.rings import SHORTEST_REPORT_MS
from gateway.routing.roster import Roster
from gateway.routing.route_plan import RouteBounds, RouteNeed, RoutePlan
from gateway.routing.sessions import SessionMap
from gateway.sources import Sources

_SPRAY: Final = 2_654_435_761
"""A request's gateway among those of its site: any, as behind a balancer that knows nothing."""
_BOUNDS: Final = RouteBounds(report_ttl_s=5.0, max_waiting_per_model=512)


class Silence(StrEnum):
    """What nodes do not tell gateways of each other's requests."""

    NOTHING = "nothing"
    PROMPTS = "prompts"
    """They tell of sessions alone."""
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Entry:
    """Where the users of a site enter: what its gateways know."""

    region: RegionId
    latencies_s: Mapping[RegionId, float]
    """To the regions whose nodes they know."""
    num_gateways: int = 1


class Production:
    """`Fleet.plan`, as gateways call it."""

    def __init__(
        self,
        nodes: Sequence[SimulatedNode],
        entries: Sequence[Entry],
        clock: Callable[[], float],
        seed: int,
        has_sessions: bool,
        silence: Silence = Silence.NOTHING,
    ) -> None:
        """`has_sessions`: clients name their sessions, or send conversations that tell them apart;
        else there are only texts.
        """
        self._nodes = nodes
        self._places = {node.node_id: place for place, node in enumerate(nodes)}
        self._has_sessions = has_sessions
        self._silence = silence
        self._plans: dict[int, tuple[Fleet, RoutePlan]] = {}
        self.decision_s = array("d")
        self.fleets = [
            [
                _create_fleet(nodes, entry, _create_sources(clock, seed, entry, place))
                for place in range(entry.num_gateways)
            ]
            for entry in entries
        ]
        self._watchers: dict[NodeId, list[tuple[Fleet, int]]] = {}
        """Who hears of each node, and in which of the moments at which nodes report."""
        for fleet in (fleet for fleets in self.fleets for fleet in fleets):
            for node in fleet.roster.snapshots:
                each = round(fleet.choose_report_ms(node.node_id) / SHORTEST_REPORT_MS)
                self._watchers.setdefault(node.node_id, []).append((fleet, each))

    def choose(self, number: int, request: SimRequest) -> int | None:
        """The router's choice, timed."""
        gateways = self.fleets[request.site if len(self.fleets) > 1 else 0]
        fleet = gateways[number * _SPRAY // 65_536 % len(gateways)]
        need = RouteNeed(
            MODEL,
            None,
            prefix_keys=request.keys,
            num_prompt_bytes=request.num_prompt * BYTES_PER_TOKEN,
            num_prompt_tokens=request.num_prompt,
            num_output_tokens=128,
            session=request.session if self._has_sessions else None,
        )
        began_s = time.thread_time()
        try:
            plan = fleet.plan(need)
        except CapacityError:
            return None
        self.decision_s.append(time.thread_time() - began_s)
        self._plans[number] = fleet, plan
        place = self._places[plan.node_id]
        num_cached = self._nodes[place].count_hit(request)
        fleet.locality.note_accepted(need, plan, request.num_prompt, num_cached)
        return place

    def end(self, number: int, request: SimRequest) -> None:
        """Gives the place back; a node that has died has not answered."""
        fleet, plan = self._plans.pop(number)
        fleet.release(plan)
        if self._nodes[self._places[plan.node_id]].is_up:
            fleet.health.note_success(plan.node_id, 0)

    def report(self, now_s: float, number: int, *, is_whole: bool) -> None:
        """Nodes tell the gateways that know them how busy they are, each as often as that asks for,
        and, where `is_whole`, whose requests and prompts they have had.
        """
        for node in self._nodes:
            if not node.is_up:
                continue
            hearers = [
                fleet
                for fleet, each in self._watchers[node.node_id]
                if is_whole or not number % each
            ]
            if not hearers:
                continue
            report = node.report(now_s)
            if self._silence is not Silence.NOTHING or not is_whole:
                report = msgspec.structs.replace(report, prefixes=b"")
            if self._silence is Silence.ALL or not is_whole:
                report = msgspec.structs.replace(report, sessions=())
            for fleet in hearers:
                fleet.record_report(report)

    def lose(self, place: int) -> None:
        """Every gateway's link to the node breaks."""
        node_id = self._nodes[place].node_id
        for fleet, _ in self._watchers[node_id]:
            fleet.record_link_lost(node_id)

    def regain(self, place: int) -> None:
        """A node that is back says so itself, with its next report."""


def _create_sources(clock: Callable[[], float], seed: int, entry: Entry, place: int) -> Sources:
    """A gateway's time and chance, which is its own: what others draw changes nothing."""
    return Sources(clock, clock, random.Random(f"{seed} {entry.region} {place}").getrandbits)


def _create_fleet(nodes: Sequence[SimulatedNode], entry: Entry, sources: Sources) -> Fleet:
    """One gateway's view."""
    regions = {name: Region("", latency_s) for name, latency_s in entry.latencies_s.items()}
    known: dict[NodeId, RegionId | None] = {
        node.node_id: node.region for node in nodes if node.region in regions
    }
    catalogue = RegionCatalogue(entry.region, regions)
    locality = Locality(SessionMap(100_000, 600.0))
    return Fleet(Roster(known, LawTable(catalogue)), _BOUNDS, locality, sources)
