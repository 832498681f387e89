"""Runs a trace over simulated nodes under one policy; deterministic, decision times aside."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.routing.policies import Policy, Production
from benchmarks.routing.simulated_node import PREFILL_PER_S, SimulatedNode
from benchmarks.routing.traces import LEAD_S, SimRequest, list_best_hits


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

    ttft_s: list[float] = field(default_factory=list[float])
    num_prompt: int = 0
    num_hit: int = 0
    balance: list[float] = field(default_factory=list[float])
    """Most loaded node against the mean, in tokens held, second by second once it is warm."""
    num_best_hit: int = 0
    """What one cache without bounds would have had of the same prompts."""
    num_computed: list[int] = field(default_factory=list[int])
    """Tokens of prompts and answers that each node has computed."""
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
    def work_balance(self) -> float:
        """The node that has computed most against the mean."""
        return max(self.num_computed) * len(self.num_computed) / max(sum(self.num_computed), 1)

    @property
    def prefill_use(self) -> float:
        """The share of all nodes' prefill that the prompts took."""
        num_new = self.num_prompt - self.num_hit
        return num_new / (len(self.num_computed) * PREFILL_PER_S * max(self.warm_s, 1e-9))

    def find_ttft_s(self, share: float) -> float:
        """A quantile."""
        return sorted(self.ttft_s)[int(share * (len(self.ttft_s) - 1))]

    @property
    def mean_balance(self) -> float:
        """Max over mean, on average."""
        return sum(self.balance) / len(self.balance) if self.balance else 0.0


def simulate(
    nodes: Sequence[SimulatedNode],
    trace: Sequence[SimRequest],
    policy: Policy,
    clock: Clock,
    warm_s: float = LEAD_S,
) -> Figures:
    """The figures of `trace` from `warm_s` on; nodes report once a second."""
    figures = Figures()
    ends: list[tuple[float, int, int]] = []
    report_s = 0.0
    best = list_best_hits(trace)
    figures.num_computed = [0] * len(nodes)
    figures.warm_s = trace[-1].arrival_s - warm_s
    for number, request in enumerate(trace):
        while report_s <= request.arrival_s:
            _finish(ends, nodes, trace, policy, report_s)
            clock.now_s = report_s
            if isinstance(policy, Production):
                for node in nodes:
                    policy.fleet.record_report(node.report(report_s))
            if report_s > warm_s:
                loads = [node.num_resident for node in nodes]
                figures.balance.append(max(loads) * len(loads) / max(sum(loads), 1))
            report_s += 1.0
        _finish(ends, nodes, trace, policy, request.arrival_s)
        clock.now_s = request.arrival_s
        place = policy.choose(request)
        first_s, end_s, hit = nodes[place].start(number, request, request.arrival_s)
        heapq.heappush(ends, (end_s, number, place))
        if request.arrival_s > warm_s:
            figures.ttft_s.append(first_s - request.arrival_s)
            figures.num_prompt += request.num_prompt
            figures.num_hit += hit
            figures.num_best_hit += best[number]
            figures.num_computed[place] += request.num_prompt - hit + request.num_output
    return figures


def _finish(
    ends: list[tuple[float, int, int]],
    nodes: Sequence[SimulatedNode],
    trace: Sequence[SimRequest],
    policy: Policy,
    now_s: float,
) -> None:
    """Ends what is over."""
    while ends and ends[0][0] <= now_s:
        _, number, place = heapq.heappop(ends)
        nodes[place].end(trace[number])
        policy.end(number, trace[number])
