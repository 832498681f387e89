"""The production router and the rules that it is measured against, behind one call.

The others are told every request's end at once, which no real router is: they are at their best.
"""

import random
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from benchmarks.routing.simulated_node import MODEL, SimulatedNode
from benchmarks.routing.traces import BYTES_PER_TOKEN, SimRequest
from contracts.ids import NodeId
from gateway.routing.fleet import Fleet
from gateway.routing.locality import Locality
from gateway.routing.prefix_index import PrefixIndex
from gateway.routing.regions import Region, RegionCatalogue
from gateway.routing.route_plan import RouteBounds, RouteNeed, RoutePlan
from gateway.routing.sessions import SessionMap
from gateway.sources import Sources


class Policy(Protocol):
    """Chooses a node for each request."""

    def choose(self, request: SimRequest) -> int:
        """The place of the node."""
        ...

    def end(self, number: int, request: SimRequest) -> None:
        """The request is over."""
        ...


class Production:
    """`Fleet.plan`, as a gateway calls it, fed by reports once a second."""

    def __init__(
        self, nodes: Sequence[SimulatedNode], clock: Callable[[], float], seed: int, affinity: bool
    ) -> None:
        """`affinity`: clients name their sessions."""
        sources = Sources(clock, clock, random.Random(seed).getrandbits)
        regions = {node.region for node in nodes}
        latencies = {name: Region("", 0.002 * rank) for rank, name in enumerate(sorted(regions))}
        self._places = {node.node_id: place for place, node in enumerate(nodes)}
        self._affinity = affinity
        self._plans: list[RoutePlan] = []
        self.decision_s: list[float] = []
        self.fleet = Fleet(
            {node.node_id: None for node in nodes},
            RouteBounds(report_ttl_s=5.0, max_waiting_per_model=512),
            RegionCatalogue(min(regions), latencies),
            Locality(SessionMap(100_000, 600.0)),
            sources,
        )

    def choose(self, request: SimRequest) -> int:
        """The router's choice, timed."""
        need = RouteNeed(
            MODEL,
            None,
            prefix_keys=request.keys,
            num_prompt_bytes=request.num_prompt * BYTES_PER_TOKEN,
            num_prompt_tokens=request.num_prompt,
            num_output_tokens=128,
            session=request.session if self._affinity else None,
        )
        began_s = time.thread_time()
        plan = self.fleet.plan(need)
        self.decision_s.append(time.thread_time() - began_s)
        self._plans.append(plan)
        return self._places[plan.node_id]

    def end(self, number: int, request: SimRequest) -> None:
        """Gives the place back."""
        self.fleet.release(self._plans[number])


class Counting:
    """What the simple rules have in common: who has how many requests."""

    def __init__(self, nodes: Sequence[SimulatedNode], seed: int) -> None:
        """Nobody has any."""
        self.counts = [0] * len(nodes)
        self._chosen: list[int] = []
        self.rng = random.Random(seed)

    def pick(self, request: SimRequest) -> int:
        """The rule."""
        raise NotImplementedError

    def choose(self, request: SimRequest) -> int:
        """What the rule says, counted."""
        place = self.pick(request)
        self.counts[place] += 1
        self._chosen.append(place)
        return place

    def end(self, number: int, request: SimRequest) -> None:
        """One fewer."""
        self.counts[self._chosen[number]] -= 1


class RoundRobin(Counting):
    """One after the other."""

    def pick(self, request: SimRequest) -> int:
        """The next one."""
        return len(self._chosen) % len(self.counts)


class LeastRequests(Counting):
    """Whoever has the fewest."""

    def pick(self, request: SimRequest) -> int:
        """The first of the least loaded."""
        return self.counts.index(min(self.counts))


class PowerOfTwo(Counting):
    """The better one of two."""

    def pick(self, request: SimRequest) -> int:
        """Two at random, the one with fewer requests."""
        first, second = (self.rng.randrange(len(self.counts)) for _ in range(2))
        return first if self.counts[first] <= self.counts[second] else second


class PrefixOnly(Counting):
    """Whoever has most of the prompt, however busy; a random one else."""

    def __init__(self, nodes: Sequence[SimulatedNode], seed: int) -> None:
        """Nothing is known."""
        super().__init__(nodes, seed)
        self._index = PrefixIndex()

    def pick(self, request: SimRequest) -> int:
        """The best match."""
        keys = request.keys
        found = self._index.find(keys)
        place = int(found[0]) if found else self.rng.randrange(len(self.counts))
        self._index.record(NodeId(str(place)), keys)
        return place
