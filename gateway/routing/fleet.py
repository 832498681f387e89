"""Who is sent where, what was sent to each node since its last report, and how that went.

Owns, with the roster, the only mutable view of the fleet; one event loop reads and writes it. Must
not know the wires that bring the reports. Read next: `gateway.routing.roster` (who there is),
`gateway.routing.route_choice` (the decision, pure), `gateway.routing.locality` (caches and
sessions), `gateway.routing.node_health`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import structlog
from msgspec.structs import replace

from contracts.fleet import NodeReport
from contracts.ids import ModelName, NodeId, RegionId
from gateway.routing.decisions import Decisions
from gateway.routing.demand import DemandRecorder
from gateway.routing.locality import Locality
from gateway.routing.node_health import NodeHealth
from gateway.routing.rings import NO_RINGS, Rings, describe_demand
from gateway.routing.roster import Roster
from gateway.routing.route_choice import (
    MAX_EXPLAINED,
    choose_next_prefill,
    choose_route,
    explain_unoffered,
    has_one_in_order,
    is_still_lawful,
    list_rejections,
    may_answer,
)
from gateway.routing.route_plan import (
    FleetState,
    Hints,
    PrefillPlan,
    Rejection,
    RouteBounds,
    RouteNeed,
    RoutePlan,
    Sent,
)
from gateway.routing.snapshots import Vouched
from gateway.sources import Sources

log = structlog.get_logger(__name__)
_DRAW_BITS: Final = 24


class Fleet:
    """One gateway's view of its nodes."""

    def __init__(
        self, roster: Roster, bounds: RouteBounds, locality: Locality, sources: Sources
    ) -> None:
        """Nothing has been sent to anybody."""
        self.roster: Final = roster
        self._nodes = roster.nodes
        self._bounds = bounds
        self._sources = sources
        self._sent: dict[tuple[NodeId, ModelName], Sent] = {}
        self.health: Final = NodeHealth(self._nodes)
        self.locality: Final = locality
        self.demand: Final = DemandRecorder()
        self.decisions: Final = Decisions()
        self.on_news: Callable[[NodeId], None] | None = None
        """Told of each node that may have room now. It must not raise."""

    def has_choice(self, model: ModelName) -> bool:
        """True when it matters where caches and sessions of `model` are: several nodes have it."""
        return self.roster.list_rings(model).has_choice

    def plan(self, need: RouteNeed, at: NodeId | None = None) -> RoutePlan:
        """The node for a request, which counts as sent there until `release`; only `at`, if given.

        Raises: what `choose_node` raises.
        """
        state, hints = self._look(need)
        plan = choose_route(state, need, self._draw, self.locality.hand_over, hints, at)
        if plan.prefill is not None:
            self._count_sent(plan.prefill, need)
            self.locality.note_prefill_sent(need, plan.prefill.node_id)
        self._count_sent(plan, need)
        is_proven = self.locality.note_sent(need, plan.node_id, state.now_s)
        return plan if is_proven else replace(plan, is_proven=False)

    def plan_prefill(self, need: RouteNeed, plan: RoutePlan) -> PrefillPlan | None:
        """Another node for the prompt of a request that `plan` has placed, in place of those tried;
        it counts as sent there. None: nobody does better than the plan's own node.
        """
        if plan.node_id not in self._nodes:
            return None
        state, hints = self._look(need)
        meter = self.locality.hand_over
        prefill = choose_next_prefill(state, need, plan, self._draw, meter, hints)
        if prefill is not None:
            self._count_sent(prefill, need)
            self.locality.note_prefill_sent(need, prefill.node_id)
        return prefill

    def note_demand(self, need: RouteNeed) -> None:
        """A request has come for a model that is offered; its further attempts are no demand."""
        allowed: tuple[RegionId, ...] | None = None
        preferred: tuple[RegionId, ...] = ()
        if need.allowed_regions is not None or need.preferred:
            allowed, preferred = describe_demand(need, self.roster.list_rings(need.model))
        self.demand.note(need.model, allowed, int(self._sources.unix_s() * 1000), preferred)

    def release(self, plan: RoutePlan | PrefillPlan) -> None:
        """The request of `plan` is over at its node; a report since then has counted it.

        To be called as soon as the node has said so: its next report counts it no more. What a plan
        says of another node that computes the prompt is released on its own.
        """
        self.health.note_over(plan.node_id)
        node = self._nodes.get(plan.node_id)
        if node is None:
            return
        sent = self._find_sent(plan.node_id, plan.card.name)
        sent.num_held -= plan.num_cached_tokens + plan.num_new_tokens
        if node.num_reports == plan.num_reports:
            sent.num_requests -= 1
            sent.num_tokens -= _count_own_tokens(plan)
        else:
            sent.num_over += 1
        self._tell(plan.node_id)

    def give_back(self, plan: RoutePlan) -> None:
        """Nothing goes where `plan` says: not for the answer, nor for its prompt elsewhere."""
        if plan.prefill is not None:
            self.release(plan.prefill)
        self.release(plan)

    def takes(self, node_id: NodeId, need: RouteNeed) -> bool:
        """True when `plan` would find the node in order and with room. An account that alone avoids
        all nodes that it may use has nothing better to wait for: others, who came later, must not
        get every place that comes free.
        """
        if node_id not in self._nodes:
            return False
        state = self._describe(self.roster.list_rings(need.model), need)
        if may_answer(state, node_id, need):
            return True
        if not self.health.find_loner(need) or has_one_in_order(state, need):
            return False
        anybody = replace(need, owner=0)
        return may_answer(self._describe(NO_RINGS, anybody), node_id, anybody)

    def is_lawful(self, plan: RoutePlan, need: RouteNeed) -> bool:
        """True while what `plan` says is allowed by `need`, as nodes speak of themselves now."""
        return is_still_lawful(self._nodes, plan, need)

    def list_rejections(self, need: RouteNeed) -> Sequence[tuple[NodeId, Rejection]]:
        """Why each node that does not come into question for a request now does not, of no more
        than `MAX_EXPLAINED` nodes, those with the model where the law allows it before others.
        """
        return list_rejections(self._describe(self.roster.list_rings(need.model), need), need)

    @property
    def num_unexplained(self) -> int:
        """How many nodes that leaves out."""
        return max(len(self._nodes) - MAX_EXPLAINED, 0)

    def note_begun(self, node_id: NodeId, owner: int) -> None:
        """The answer to a request of the account has begun. To be told once of each."""
        if node_id in self._nodes:
            self.health.note_begun(node_id, owner)
            self._tell(node_id)

    def note_failure(self, node_id: NodeId, owner: int) -> None:
        """A node has failed a request of the account, and not because it went away, which is
        counted once.
        """
        node = self._nodes.get(node_id)
        if node is not None and node.is_connected:
            self.health.note_failure(node_id, self._sources.monotonic_s(), owner)

    def note_late(self, node_id: NodeId) -> None:
        """A node has taken a grant for passed that is not, by this gateway's clock."""
        if node_id not in self._nodes:
            return
        was_doubted = self.is_clock_doubted()
        self.health.clock.note_late(node_id, self._sources.monotonic_s())
        if self.is_clock_doubted() and not was_doubted:
            log.error("clock_of_gateway_behind", num_nodes=len(self._list_connected()))

    def is_clock_doubted(self) -> bool:
        """True when most nodes say that this gateway's clock is behind: it is no fault of theirs,
        and clients should go to another gateway.
        """
        now_s = self._sources.monotonic_s()
        return self.health.clock.is_doubted(self._list_connected(), now_s)

    def is_clock_refuted(self) -> bool:
        """True when all nodes say so, so that no attempt could end better."""
        now_s = self._sources.monotonic_s()
        return self.health.clock.is_refuted(self._list_connected(), now_s)

    def note_refusal(self, node_id: NodeId, need: RouteNeed) -> None:
        """A node has refused a request that would have waited there, or has left it lying."""
        node = self._nodes.get(node_id)
        if node is not None and node.has_free_place(need.model) and need.may_wait:
            self._note_refused(node_id, need)

    def note_contradicted(self, node_id: NodeId, need: RouteNeed, num_prompt: int) -> None:
        """A node has found fault with a request that another one has taken, which counts the tokens
        of its prompt: that is held against it where its own context has room for them.
        """
        node = self._nodes.get(node_id)
        card = None if node is None else node.cards.get(need.model)
        num_tokens = num_prompt + max(need.num_asked_tokens, 1)  # an answer has a token at least
        if card is not None and num_tokens <= card.context_window:
            self._note_refused(node_id, need)

    def _note_refused(self, node_id: NodeId, need: RouteNeed) -> None:
        """The node does not take what it should."""
        now_s = self._sources.monotonic_s()
        if self.health.refusals.note_refused(node_id, need, now_s):
            log.warning("node_refuses", node_id=node_id, model=need.model)

    def admit(self, node_id: NodeId, vouched: Vouched) -> None:
        """The node is in the fleet from now on, where operators say that it is."""
        self.roster.admit(node_id, vouched)
        self.health.admit(node_id)

    def dismiss(self, node_id: NodeId) -> None:
        """The node is in the fleet no more; what is under way there ends by itself."""
        self.roster.dismiss(node_id)
        self.locality.dismiss(node_id)
        self.health.dismiss(node_id)
        for key in [key for key in self._sent if key[0] == node_id]:
            del self._sent[key]  # of models that it had given up, too

    def expect(self, vouched: Mapping[NodeId, Vouched]) -> None:
        """As `Roster.expect` says. Of nodes that have left and are not counted on nothing is kept,
        once what they had is over: names need not come twice.
        """
        self.roster.expect(vouched)
        for node_id in self.roster.former - vouched.keys():
            if self.health.forget(node_id):
                self.roster.forget(node_id)

    def record_report(self, report: NodeReport) -> None:
        """Replaces what was known of the node; what had been sent before is in its counts.

        One that contradicts what is known of the node's region is refused.
        """
        self._record(report, is_connected=True)

    def record_heartbeat(self, report: NodeReport) -> bool:
        """Takes over what a node has said in another way than to us, while it is not connected.

        False when it contradicts what operators say of it.
        """
        if self._nodes[report.node_id].is_connected:
            return not self.roster.contradicts(report)
        return self._record(report, is_connected=False)

    def record_link_lost(self, node_id: NodeId) -> None:
        """Keeps what the node said of its models, so that they stay known while it is away.

        One that has not said that it is going comes back on probation.
        """
        node = self.roster.note_away(node_id)
        if node is not None and node.is_connected and not node.is_leaving:
            self.health.note_gone(node_id)

    def choose_report_ms(self, node_id: NodeId) -> int:
        """How often a node that connects now is to report."""
        return self.roster.choose_report_ms(node_id)

    def set_drained(self, node_ids: Collection[NodeId]) -> None:
        """These nodes, and no others, are to get nothing new."""
        for node_id in self.roster.set_drained(node_ids):
            self._tell(node_id)

    def explain_unoffered(self, need: RouteNeed) -> Exception:
        """What `choose_node` raises for a model that no node has ever offered."""
        return explain_unoffered(self._describe(NO_RINGS, need), need)

    def list_troubled(self) -> Mapping[NodeId, Rejection]:
        """Nodes that have failed lately and get few requests or none."""
        return self.health.list_troubled(self._sources.monotonic_s())

    def has_ready_model(self) -> bool:
        """True when some node could serve some model now, if only after waking it."""
        now_s = self._sources.monotonic_s()
        return any(
            node.is_connected
            and not node.is_leaving
            and now_s - node.reported_s <= self._bounds.report_ttl_s
            and any(node.find_wake_s(model) is not None for model in node.loads)
            for node in self.roster.snapshots
        )

    def _record(self, report: NodeReport, *, is_connected: bool) -> bool:
        """Takes a report over; False when it is not believed."""
        now_s = self._sources.monotonic_s()
        recorded = self.roster.record(report, now_s, is_connected=is_connected)
        if recorded is None:
            return False
        before, node = recorded
        if before.boot_id != node.boot_id:
            self.locality.forget(node.node_id)
            self.health.refusals.forget(node.node_id)
        self.locality.note_capacity(report.node_id, report.loads)
        self.locality.note_told(report, now_s, is_near=self.roster.hears(report))
        for model in (*before.cards, *node.cards):
            self._sent.pop((report.node_id, model), None)
        self._tell(report.node_id)
        return True

    def _count_sent(self, plan: RoutePlan | PrefillPlan, need: RouteNeed) -> None:
        """The node of `plan` has one more request."""
        sent = self._find_sent(plan.node_id, need.model)
        sent.num_requests += 1
        sent.num_tokens += _count_own_tokens(plan)
        sent.num_held += plan.num_cached_tokens + plan.num_new_tokens
        self.health.note_sent(plan.node_id)
        self.health.refusals.note_sent(plan.node_id, need, self._sources.monotonic_s())

    def _find_sent(self, node_id: NodeId, model: ModelName) -> Sent:
        """What has been sent there since the node's last report."""
        sent = self._sent.get((node_id, model))
        if sent is None:
            sent = self._sent[node_id, model] = Sent()
        return sent

    def _list_connected(self) -> frozenset[NodeId]:
        """Nodes that can be reached."""
        return frozenset(n.node_id for n in self.roster.snapshots if n.is_connected)

    def _look(self, need: RouteNeed) -> tuple[FleetState, Hints]:
        """What the choice of a node for `need` rests on, and who deserves a look first."""
        rings = self.roster.list_rings(need.model)
        state = self._describe(rings, need)
        return state, self.locality.find_hints(need, rings, self._nodes, state.now_s)

    def _describe(self, rings: Rings, need: RouteNeed) -> FleetState:
        """What a choice among `rings` at this moment rests on."""
        now_s = self._sources.monotonic_s()
        return FleetState(
            now_s,
            self._bounds,
            self._nodes,
            rings.answering,
            self._sent,
            self.health.list_troubled(now_s, need),
            rings.prefilling,
            rings.latencies_s,
            self.roster.absent,
            self.roster.list_kinds,
            self.locality.find_usual_new_tokens(need.model),
        )

    def _tell(self, node_id: NodeId) -> None:
        """There may be room at the node."""
        if self.on_news is not None:
            self.on_news(node_id)

    def _draw(self, count: int) -> int:
        """A number below `count`."""
        return self._sources.random_bits(_DRAW_BITS) % count


def _count_own_tokens(plan: RoutePlan | PrefillPlan) -> int:
    """Tokens of the prompt that the plan's node itself is to compute."""
    if isinstance(plan, RoutePlan) and plan.prefill is not None:
        return 0
    return plan.num_new_tokens
