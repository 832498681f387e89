"""Runs a trace over simulated nodes under one policy; deterministic, decision times aside."""

import heapq
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

from benchmarks.routing.balance import Balance
from benchmarks.routing.policies import Policy
from benchmarks.routing.scenarios import Scenario
from benchmarks.routing.traces import LEAD_S, EndlessCache, SimRequest
from gateway.routing.rings import SHORTEST_REPORT_MS

REPORT_S = SHORTEST_REPORT_MS / 1000
_WHOLE_REPORTS = round(1 / REPORT_S)
"""Of so many one tells all: each second."""
WINDOW_S = 30.0
"""Over which computed tokens are compared."""


@dataclass(slots=True)
class Clock:
    """The simulation's time."""

    now_s: float = 0.0

    def __call__(self) -> float:
        """Now."""
        return self.now_s


@dataclass(slots=True)
class Figures:
    """What came of a run."""

    balance: Balance
    ttft_s: "array[float]" = field(default_factory=lambda: array("d"))
    num_prompt: int = 0
    num_hit: int = 0
    num_best_hit: int = 0
    """What one cache without bounds would have had of the same prompts."""
    num_refused: int = 0
    """No node took them."""
    prefill_per_s: float = 0.0
    """Of all nodes."""
    warm_s: float = 0.0
    """How long was measured."""

    @property
    def hit_ratio(self) -> float:
        """Cached tokens among all of prompts."""
        return self.num_hit / self.num_prompt

    @property
    def share_of_best(self) -> float:
        """Cached tokens against those of one cache without bounds."""
        return self.num_hit / max(self.num_best_hit, 1)

    @property
    def prefill_use(self) -> float:
        """The share of all nodes' prefill that the prompts took."""
        return (self.num_prompt - self.num_hit) / (self.prefill_per_s * max(self.warm_s, 1e-9))

    def add(self, other: "Figures") -> None:
        """What came of the same time elsewhere, among nodes that have nothing to do with these."""
        self.balance.add(other.balance)
        self.ttft_s += other.ttft_s
        self.num_prompt += other.num_prompt
        self.num_hit += other.num_hit
        self.num_best_hit += other.num_best_hit
        self.num_refused += other.num_refused
        self.prefill_per_s += other.prefill_per_s
        self.warm_s = max(self.warm_s, other.warm_s)

    def find_ttft_s(self, share: float) -> float:
        """A quantile."""
        return sorted(self.ttft_s)[int(share * (len(self.ttft_s) - 1))]


def simulate(
    scenario: Scenario,
    trace: Iterable[SimRequest],
    policy: Policy,
    clock: Clock,
    warm_s: float = LEAD_S,
    end_s: float = 0.0,
) -> Figures:
    """The figures of `trace` from `warm_s` on, until `end_s` or the last request.

    Nodes report as often as gateways ask so many to, and each second with whose requests and
    prompts they have had.
    """
    run = _Run(scenario, policy, clock, warm_s)
    for number, request in enumerate(trace):
        run.go_on_to(request.arrival_s)
        run.take(number, request)
    run.go_on_to(end_s)
    run.figures.warm_s = clock.now_s - warm_s
    return run.figures


class _Run:
    """A simulation under way."""

    def __init__(self, scenario: Scenario, policy: Policy, clock: Clock, warm_s: float) -> None:
        """Nothing has come yet."""
        nodes = scenario.nodes
        self.figures = Figures(Balance(scenario.pools, len(nodes)))
        self.figures.prefill_per_s = sum(node.prefill_per_s for node in nodes)
        self._scenario = scenario
        self._policy = policy
        self._clock = clock
        self._warm_s = warm_s
        self._ends: list[tuple[float, int, int, SimRequest]] = []
        self._cache = EndlessCache()
        self._num_reports = 0
        self._window_s = warm_s + WINDOW_S

    def go_on_to(self, now_s: float) -> None:
        """Time passes: nodes report, requests end."""
        while (report_s := self._num_reports * REPORT_S) <= now_s:
            self._finish(report_s)
            self._clock.now_s = report_s
            is_whole = self._num_reports % _WHOLE_REPORTS == 0
            self._policy.report(report_s, self._num_reports, is_whole=is_whole)
            if is_whole and report_s > self._warm_s:
                self.figures.balance.note_held([one.num_resident for one in self._scenario.nodes])
            self._num_reports += 1
        while self._window_s <= now_s:
            self.figures.balance.end_window()
            self._window_s += WINDOW_S
        self._finish(now_s)
        self._clock.now_s = max(now_s, self._clock.now_s)

    def take(self, number: int, request: SimRequest) -> None:
        """A request comes in now."""
        now_s, figures = self._clock.now_s, self.figures
        place = self._policy.choose(number, request)
        if place is None:
            figures.num_refused += 1
            return
        first_s, end_s, hit = self._scenario.nodes[place].start(number, request, now_s)
        heapq.heappush(self._ends, (end_s, number, place, request))
        best = self._cache.count_hit(request)
        if now_s > self._warm_s:
            way_s = self._scenario.measure_way_s(request.site, place)
            figures.ttft_s.append(first_s - now_s + way_s)
            figures.num_prompt += request.num_prompt
            figures.num_hit += hit
            figures.num_best_hit += best
            figures.balance.note_computed(place, request.num_prompt - hit + request.num_output)

    def _finish(self, now_s: float) -> None:
        """Ends what is over."""
        while self._ends and self._ends[0][0] <= now_s:
            _, number, place, request = heapq.heappop(self._ends)
            self._scenario.nodes[place].end(request)
            self._policy.end(number, request)
