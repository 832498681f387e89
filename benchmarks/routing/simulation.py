"""Runs a trace over simulated nodes under one policy; deterministic, decision times aside."""

import heapq
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from benchmarks.routing.balance import Balance
from benchmarks.routing.outages import Turn
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
    num_moved: int = 0
    """Their node died, and another one went on."""
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
        self.num_moved += other.num_moved
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
    turns: Sequence[Turn] = (),
) -> Figures:
    """The figures of `trace` from `warm_s` on, until `end_s` or the last request.

    Nodes report as often as gateways ask so many to, and each second with whose requests and
    prompts they have had. `turns` are when some of them die and come back.
    """
    run = _Run(scenario, policy, clock, warm_s, turns)
    for number, request in enumerate(trace):
        run.pass_turns(request.arrival_s)
        run.go_on_to(request.arrival_s)
        run.take(number, request)
    run.pass_turns(end_s)
    run.go_on_to(end_s)
    if not run.figures.balance.carried:  # all of it was shorter than a window
        run.figures.balance.end_window()
    run.figures.warm_s = clock.now_s - warm_s
    return run.figures


@dataclass(slots=True)
class _Open:
    """A request that some node has."""

    request: SimRequest
    place: int
    first_s: float
    end_s: float
    index: int | None
    """Of its time to the first token, where that is told."""


class _Run:
    """A simulation under way."""

    def __init__(
        self,
        scenario: Scenario,
        policy: Policy,
        clock: Clock,
        warm_s: float,
        turns: Sequence[Turn],
    ) -> None:
        """Nothing has come yet."""
        nodes = scenario.nodes
        self.figures = Figures(Balance(scenario.pools, len(nodes)))
        self.figures.prefill_per_s = sum(node.prefill_per_s for node in nodes)
        self._scenario = scenario
        self._policy = policy
        self._clock = clock
        self._warm_s = warm_s
        self._turns = iter(turns)
        self._next_turn = next(self._turns, None)
        self._open: dict[int, _Open] = {}
        self._ends: list[tuple[float, int]] = []
        """When each is over, those included that have moved since."""
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
        opened, hit = self._start(number, request, place)
        best = self._cache.count_hit(request)
        if now_s > self._warm_s:
            way_s = self._scenario.measure_way_s(request.site, place)
            opened.index = len(figures.ttft_s)
            figures.ttft_s.append(opened.first_s - now_s + way_s)
            figures.num_prompt += request.num_prompt
            figures.num_hit += hit
            figures.num_best_hit += best
            figures.balance.note_computed(place, request.num_prompt - hit + request.num_output)

    def pass_turns(self, until_s: float) -> None:
        """Nodes die and come back, each at its time."""
        while (turn := self._next_turn) is not None and turn.at_s <= until_s:
            self.go_on_to(turn.at_s)
            node = self._scenario.nodes[turn.place]
            if turn.is_up:
                node.rise()
                self._policy.regain(turn.place)
            else:
                self._lose(turn.place)
            self._next_turn = next(self._turns, None)

    def _lose(self, place: int) -> None:
        """A node dies; others go on with what it had, each from the tokens that have come."""
        self._scenario.nodes[place].die()
        lost = [(number, one) for number, one in self._open.items() if one.place == place]
        for number, one in lost:
            del self._open[number]
            self._policy.end(number, one.request)
        self._policy.lose(place)
        for number, one in lost:
            self._move(number, one)

    def _move(self, number: int, lost: _Open) -> None:
        """Another node computes the prompt and what has come of the answer, and goes on."""
        now_s, figures = self._clock.now_s, self.figures
        request = _write_rest(lost, now_s)
        place = self._policy.choose(number, request)
        if place is None:
            figures.num_refused += 1
            return
        opened, hit = self._start(number, request, place)
        figures.num_moved += 1
        if lost.index is not None and lost.first_s > now_s:  # the client has yet to see a token
            figures.ttft_s[lost.index] += opened.first_s - lost.first_s
            opened.index = lost.index
        if now_s > self._warm_s:
            figures.num_prompt += request.num_prompt
            figures.num_hit += hit
            figures.num_best_hit += self._cache.count_hit(request)
            figures.balance.note_computed(place, request.num_prompt - hit + request.num_output)

    def _start(self, number: int, request: SimRequest, place: int) -> tuple[_Open, int]:
        """The request is at a node now; and how much of its prompt was cached there."""
        start = self._scenario.nodes[place].start
        first_s, end_s, hit = start(number, request, self._clock.now_s)
        opened = self._open[number] = _Open(request, place, first_s, end_s, None)
        heapq.heappush(self._ends, (end_s, number))
        return opened, hit

    def _finish(self, now_s: float) -> None:
        """Ends what is over."""
        while self._ends and self._ends[0][0] <= now_s:
            end_s, number = heapq.heappop(self._ends)
            one = self._open.get(number)
            if one is not None and one.end_s == end_s:
                del self._open[number]
                self._scenario.nodes[one.place].end(one.request)
                self._policy.end(number, one.request)


def _write_rest(lost: _Open, now_s: float) -> SimRequest:
    """What is left of a request: tokens that have come are part of the prompt."""
    num_come = 0
    if lost.first_s < now_s:
        spent = (now_s - lost.first_s) / (lost.end_s - lost.first_s)
        num_come = min(int(spent * lost.request.num_output), lost.request.num_output - 1)
    return replace(
        lost.request,
        arrival_s=now_s,
        num_prompt=lost.request.num_prompt + num_come,
        num_output=lost.request.num_output - num_come,
    )
