"""Runs a trace over simulated nodes under one policy; deterministic, decision times aside."""

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from benchmarks.routing.balance import Balance
from benchmarks.routing.policies import Policy
from benchmarks.routing.simulated_node import SimulatedNode
from benchmarks.routing.traces import LEAD_S, EndlessCache, SimRequest

REPORT_S = 1.0
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
    ttft_s: list[float] = field(default_factory=list[float])
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

    def find_ttft_s(self, share: float) -> float:
        """A quantile."""
        return sorted(self.ttft_s)[int(share * (len(self.ttft_s) - 1))]


def simulate(
    nodes: Sequence[SimulatedNode],
    trace: Iterable[SimRequest],
    policy: Policy,
    clock: Clock,
    warm_s: float = LEAD_S,
    measure_way_s: Callable[[int, int], float] = lambda site, place: 0.0,
    pools: Sequence[Sequence[int]] = (),
) -> Figures:
    """The figures of `trace` from `warm_s` on; nodes report as often as gateways ask so many to,
    and each second with whose requests and prompts they have had.

    `measure_way_s`: from the user at a site to a node and back. `pools` are places of nodes whose
    loads are compared with each other's; by default all are one.
    """
    figures = Figures(Balance(pools or [range(len(nodes))], len(nodes)))
    figures.prefill_per_s = sum(node.prefill_per_s for node in nodes)
    ends: list[tuple[float, int, int, SimRequest]] = []
    cache = EndlessCache()
    report_s, num_reports, window_s = 0.0, 0, warm_s + WINDOW_S
    num_between = round(REPORT_S / policy.report_s)
    for number, request in enumerate(trace):
        now_s = request.arrival_s
        while report_s <= now_s:
            _finish(ends, nodes, policy, report_s)
            clock.now_s = report_s
            is_whole = num_reports % num_between == 0
            policy.report(report_s, is_whole=is_whole)
            if is_whole and report_s > warm_s:
                figures.balance.note_held([node.num_resident for node in nodes])
            report_s, num_reports = report_s + policy.report_s, num_reports + 1
        while window_s <= now_s:
            figures.balance.end_window()
            window_s += WINDOW_S
        _finish(ends, nodes, policy, now_s)
        clock.now_s = now_s
        place = policy.choose(number, request)
        if place is None:
            figures.num_refused += 1
            continue
        first_s, end_s, hit = nodes[place].start(number, request, now_s)
        heapq.heappush(ends, (end_s, number, place, request))
        best = cache.count_hit(request)
        if now_s > warm_s:
            figures.ttft_s.append(first_s - now_s + measure_way_s(request.site, place))
            figures.num_prompt += request.num_prompt
            figures.num_hit += hit
            figures.num_best_hit += best
            figures.balance.note_computed(place, request.num_prompt - hit + request.num_output)
            figures.warm_s = now_s - warm_s
    return figures


def _finish(
    ends: list[tuple[float, int, int, SimRequest]],
    nodes: Sequence[SimulatedNode],
    policy: Policy,
    now_s: float,
) -> None:
    """Ends what is over."""
    while ends and ends[0][0] <= now_s:
        _, number, place, request = heapq.heappop(ends)
        nodes[place].end(request)
        policy.end(number, request)
