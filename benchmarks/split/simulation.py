"""Plays a trace over simulated nodes behind the production router; deterministic.

Owns the order of events: arrivals, ends of steps, landings, reports.
"""

import heapq
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from benchmarks.split.hand_over import TimedSource
from benchmarks.split.simulated_core import MODEL, REGION, SimulatedCore
from benchmarks.split.traces import SimRequest
from contracts.errors import PoolSaturated
from contracts.ids import AccountId, NodeId
from contracts.inference import SamplingParams
from contracts.node_roles import NodeRole
from gateway.routing.fleet import Fleet
from gateway.routing.law_table import LawTable
from gateway.routing.locality import Locality
from gateway.routing.regions import RegionCatalogue
from gateway.routing.rings import SHORTEST_REPORT_MS
from gateway.routing.roster import Roster
from gateway.routing.route_plan import PrefillPlan, RouteBounds, RouteNeed, RoutePlan
from gateway.routing.sessions import SessionMap
from gateway.sources import Sources
from gpu_pool.engine.messages import AddSequence, StepOutput
from gpu_pool.plan import SequenceId

_BYTES_PER_TOKEN: Final = 4
_USUAL_OUTPUT: Final = 150
_ACCOUNTS: Final = 8


@dataclass(slots=True)
class Figures:
    """What clients felt. Units: seconds."""

    ttft_s: list[float] = field(default_factory=list[float])
    gaps_s: list[float] = field(default_factory=list[float])
    """Between two tokens of one answer."""
    worst_gaps_s: list[float] = field(default_factory=list[float])
    """The longest of each answer."""
    num_tokens: int = 0
    num_refused: int = 0
    num_split: int = 0
    end_s: float = 0.0


@dataclass(slots=True)
class _Answer:
    """One request on its way."""

    request: SimRequest
    plan: RoutePlan
    last_s: float | None = None
    worst_gap_s: float = 0.0


class Simulation:
    """One fleet, one trace."""

    def __init__(
        self,
        cores: Sequence[SimulatedCore],
        sources: Sequence[TimedSource],
        moved_s: tuple[float, float],
        warm_s: float,
        observe: Callable[[Iterable[SimulatedCore], float], None] | None = None,
    ) -> None:
        """`moved_s` is what a hand-over takes: once, and for each token. `observe` is called before
        each round of reports, and may give cores other roles.
        """
        self._observe = observe
        self._cores = {core.node_id: core for core in cores}
        self._landings = {core.node_id: source for core, source in zip(cores, sources, strict=True)}
        self._moved_s = moved_s
        self._warm_s = warm_s
        self._now_s = 0.0
        clock = Sources(lambda: self._now_s, lambda: self._now_s, random.Random(5).getrandbits)
        self._fleet = Fleet(
            Roster({core.node_id: None for core in cores}, LawTable(RegionCatalogue(REGION, {}))),
            RouteBounds(report_ttl_s=5.0, max_waiting_per_model=512),
            Locality(SessionMap(1000, 600.0)),
            clock,
        )
        self._events: list[tuple[float, int, str, object]] = []
        self._num_events = 0
        self._answers: dict[int, _Answer] = {}
        self._prefills: dict[int, PrefillPlan] = {}
        self.figures = Figures()

    def run(self, trace: Sequence[SimRequest]) -> Figures:
        """The figures of `trace`, played to its end."""
        self._report()
        for request in trace:
            self._push(request.arrival_s, "arrival", request)
        num_open = len(trace)
        reported_s, report_s = 0.0, SHORTEST_REPORT_MS / 1000
        while self._events and (num_open or self._answers):
            self._now_s, _, kind, subject = heapq.heappop(self._events)
            while reported_s + report_s <= self._now_s:
                reported_s += report_s
                self._report()
            if kind == "arrival":
                assert isinstance(subject, SimRequest)
                num_open -= 1
                self._arrive(subject)
            else:
                assert isinstance(subject, SimulatedCore)
                if kind == "step":
                    self._take_in(subject, subject.end_step())
                self._go_on(subject)
        self.figures.end_s = self._now_s
        return self.figures

    def list_roles(self) -> list[NodeRole]:
        """Of every core, as it is now."""
        return [core.role for core in self._cores.values()]

    def _arrive(self, request: SimRequest) -> None:
        """Routes a request and hands it to the node that begins."""
        need = RouteNeed(
            MODEL,
            None,
            num_prompt_bytes=request.num_prompt * _BYTES_PER_TOKEN,
            num_prompt_tokens=request.num_prompt,
            num_output_tokens=_USUAL_OUTPUT,
            may_move=True,
        )
        try:
            plan = self._fleet.plan(need)
        except PoolSaturated:
            self.figures.num_refused += 1
            return
        self._answers[request.number] = _Answer(request, plan)
        if plan.prefill is None:
            self._add(plan.node_id, request, request.num_output)
        else:
            self._prefills[request.number] = plan.prefill
            self.figures.num_split += 1
            self._add(plan.prefill.node_id, request, 1)

    def _add(self, node_id: NodeId, request: SimRequest, max_tokens: int) -> None:
        """A sequence arrives at a node."""
        core = self._cores[node_id]
        number = request.number
        core.add(
            AddSequence(
                sequence_id=SequenceId(number),
                account_id=AccountId(f"{number % _ACCOUNTS:032x}"),
                cache_salt=number.to_bytes(32, "little"),
                token_ids=tuple(range(request.num_prompt)),
                sampling=SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True),
                priority=0,
                deadline_ms=2**50,
                reject_if_busy=False,
            )
        )
        self._go_on(core)

    def _go_on(self, core: SimulatedCore) -> None:
        """Starts the next step of a core that is free, or waits for what is to land there."""
        if core.is_stepping:
            return
        source = self._landings[core.node_id]
        source.now_s = self._now_s
        end_s = core.begin_step(self._now_s)
        if end_s is not None:
            self._push(end_s, "step", core)
        elif source.next_s is not None:
            self._push(max(source.next_s, self._now_s), "landing", core)

    def _take_in(self, core: SimulatedCore, output: StepOutput | None) -> None:
        """What a step has brought, felt by clients or handed on."""
        if output is None:
            return
        ended: defaultdict[int, int] = defaultdict(int)
        for told in output.tokens:
            ended[told.sequence_id] += len(told.token_ids)
        for number, count in ended.items():
            if number not in self._prefills:
                self._feel(self._answers[number], count)
        for finished in output.finished:
            number = finished.sequence_id
            assert finished.error is None, finished.error
            if number in self._prefills:
                self._hand_over(self._prefills.pop(number), self._answers[number])
            else:
                self._end(self._answers.pop(number))

    def _hand_over(self, prefill: PrefillPlan, answer: _Answer) -> None:
        """A prompt is computed: its blocks set out for the node that answers."""
        self._fleet.release(prefill)
        fixed_s, token_s = self._moved_s
        num_tokens = answer.request.num_prompt
        moved_s = fixed_s + token_s * num_tokens
        self._fleet.locality.hand_over.note(num_tokens, moved_s, self._now_s)
        source = self._landings[answer.plan.node_id]
        source.announce(SequenceId(answer.request.number), self._now_s + moved_s)
        self._add(answer.plan.node_id, answer.request, answer.request.num_output)

    def _feel(self, answer: _Answer, count: int) -> None:
        """A client gets `count` tokens."""
        is_counted = answer.request.arrival_s >= self._warm_s
        if answer.last_s is None:
            if is_counted:
                self.figures.ttft_s.append(self._now_s - answer.request.arrival_s)
        else:
            gap_s = self._now_s - answer.last_s
            answer.worst_gap_s = max(answer.worst_gap_s, gap_s)
            if is_counted:
                self.figures.gaps_s.append(gap_s)
        answer.last_s = self._now_s
        self.figures.num_tokens += count

    def _end(self, answer: _Answer) -> None:
        """An answer is complete."""
        self._fleet.release(answer.plan)
        if answer.request.arrival_s >= self._warm_s:
            self.figures.worst_gaps_s.append(answer.worst_gap_s)

    def _report(self) -> None:
        if self._observe is not None:
            self._observe(self._cores.values(), self._now_s)
        for core in self._cores.values():
            self._fleet.record_report(core.report())

    def _push(self, at_s: float, kind: str, subject: object) -> None:
        self._num_events += 1
        heapq.heappush(self._events, (at_s, self._num_events, kind, subject))
