"""One prompt that another node computes for the one that answers: all that the two say of it.

The node that answers is asked first and says which blocks it wants; then the other one computes
the prompt, and what it says of exported blocks is passed on as it is. Its blocks are leased until
the first has them or does without. Whatever fails ends with the node that answers computing the
prompt itself: nothing has gone out before, so that a client sees none of it. The prompt is paid
once, as soon as it is being computed. Called by the connections' readers: nothing here waits.
Read next: `contracts.kv_transfer`, `gateway.routing.prefill_choice`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec
import structlog

from contracts.errors import ServiceError, StreamBroken
from contracts.grant import Grant
from contracts.inference import Accepted, Failed, Finished
from contracts.kv_transfer import (
    KV_LATE,
    MAX_STRETCH,
    KvExported,
    KvGaveUp,
    KvHalf,
    KvImport,
    KvLanded,
    KvRelease,
    KvReserved,
    KvStop,
    KvTicket,
    TransferEvent,
    digest_account,
)
from gateway.attempt_grant import (
    create_grant,
    finds_fault,
    hold_to_word,
    is_fault_of_node,
    is_refusal,
    read_node_error,
)
from gateway.request_context import RequestContext
from gateway.routing.fleet import Fleet
from gateway.routing.route_plan import PrefillPlan, RouteNeed, RoutePlan
from gateway.sources import Sources
from gateway.telemetry import HandOverOutcome, Step, Telemetry
from gateway.upstream.fed_links import FedLinks
from gateway.upstream.node_stream import NodeStream

log = structlog.get_logger(__name__)
_PATIENCE: Final = 3.0
"""Times what the way was expected to take; if nothing has come by then, the node that answers
helps itself."""
_LEAST_PATIENCE_S: Final = 5.0
_WAY_S: Final = 1.0
"""Of the patience: what a ticket and the wish for blocks may take until the prompt is asked for."""
_PROMPT_ATTEMPTS: Final = 1 << 16
"""Attempts at a prompt alone are numbered from here."""
_MAX_TRIES: Final = 3
_MAX_EXPORT_BYTES: Final = 2 * 1024 * 1024
"""Of one `KvExported`, which has to fit into a frame beside others."""
_MAX_EXPORTS_BYTES: Final = 32 * 1024 * 1024
"""Of all of a node's: a prompt of a million tokens takes a tenth."""


@dataclass(frozen=True, slots=True)
class HandOverParts:
    """What all hand-overs of a gateway share."""

    fleet: Fleet
    links: FedLinks
    telemetry: Telemetry
    sources: Sources
    is_current: Callable[[int], bool]
    """Whether what an account allowed in a generation of the store is what it allows now."""


class StreamOpener:
    """Opens the stream of an attempt and, where another node computes the prompt, its hand-over."""

    def __init__(self, parts: HandOverParts) -> None:
        """For all attempts of a gateway."""
        self._parts = parts

    def open(
        self,
        context: RequestContext,
        need: RouteNeed,
        plan: RoutePlan,
        grant: Grant,
        body: bytes,
    ) -> tuple[NodeStream, "HandOver | None"]:
        """The stream of the node that answers. A hand-over has to be closed.

        Raises: as `NodeLinks.open`; the plan's second endpoint is given back then.
        """
        if plan.prefill is None:
            links, adapter = self._parts.links, need.adapter
            return links.open(plan.node_id, grant, body, adapter=adapter), None
        hand_over = HandOver(self._parts, context, need, plan, body)
        try:
            ticket = hand_over.create_ticket(KvHalf.DECODE)
            stream = self._parts.links.open(plan.node_id, grant, body, ticket, need.adapter)
        except BaseException:
            hand_over.close()
            raise
        hand_over.watch(stream)
        return stream, hand_over


class HandOver:
    """One attempt's; `watch` begins, `close` ends it."""

    def __init__(
        self,
        parts: HandOverParts,
        context: RequestContext,
        need: RouteNeed,
        plan: RoutePlan,
        body: bytes,
    ) -> None:
        """`plan` has a second endpoint, which counts as sent there."""
        assert plan.prefill is not None, "a hand-over without a second node"
        self._parts = parts
        self._context = context
        self._need = need
        self._plan = plan
        self._body = body
        self._prefill: PrefillPlan | None = plan.prefill
        """Who computes the prompt now; None once nobody does."""
        self._num_tries = 0
        self._is_first_time = True
        """The node that computes the prompt now has had nothing of the request before."""
        self._asked: tuple[int, float] | None = None
        """The attempt at the prompt that is under way, and since when."""
        self._answering: NodeStream | None = None
        self._computing: NodeStream | None = None
        self._reserved: KvReserved | None = None
        self._exported_s = parts.sources.monotonic_s()
        """When the last of the prompt was exported; before that, when all began."""
        self._is_exported = False
        """All of the prompt."""
        self._heard_s = self._exported_s
        """When the node that computes it last exported something; before that, when all began."""
        self._patience_s = max(plan.prefill.cost_s * _PATIENCE, _LEAST_PATIENCE_S)
        """How long the node that answers waits for news, by its ticket."""
        self._was_late = False
        """The node that computes it: to end then is no success, and no second failure."""
        self._num_export_bytes = 0
        """Of the node that computes the prompt now."""
        self._is_stopped = False
        """The node that answers was told that nobody computes the prompt."""
        self._is_released = False
        self._blaming: list[PrefillPlan] = []
        """Whose nodes found fault with the prompt: they are contradicted where another takes it."""
        self._ticket_to_tell = b""
        """For the node that answers, with the first export of another node than it was told of."""

    def create_ticket(self, half: KvHalf) -> KvTicket:
        """The permission for one of the two nodes, as things stand."""
        context, prefill, reserved = self._context, self._prefill, self._reserved
        assert context.principal is not None
        assert prefill is not None, "a ticket for nobody"
        patience_s = self._patience_s * (MAX_STRETCH if half is KvHalf.PREFILL else 1)
        sources = self._parts.sources
        patience_s = min(patience_s, context.deadline_s - sources.monotonic_s())
        patience_ms = max(1, int(patience_s * 1000))
        wanted = reserved if half is KvHalf.PREFILL else None
        return KvTicket(
            half=half,
            request_id=context.request_id,
            account_digest=digest_account(context.principal.account_id),
            model=self._plan.card.name,
            revision=self._plan.card.revision,
            layout=prefill.target.layout,
            deadline_unix_ms=int(sources.unix_s() * 1000) + patience_ms,
            prefill_node=prefill.node_id,
            prefill_incarnation=prefill.endpoint.incarnation,
            decode_node=self._plan.node_id,
            decode_incarnation=prefill.target.incarnation,
            first_block=0 if wanted is None else wanted.first_block,
            num_blocks=0 if wanted is None else wanted.num_blocks,
            patience_ms=patience_ms,
        )

    def watch(self, answering: NodeStream) -> None:
        """`answering` is open with its ticket, and says next what it wants."""
        self._answering = answering
        answering.on_transfer = self._hear_answering

    def close(self) -> None:
        """The attempt is over, or never began. The first call counts."""
        stream, self._computing = self._computing, None
        if stream is not None and not self._is_released:
            if not self._num_export_bytes:
                stream.send_transfer(KvRelease())  # nobody was told of blocks, so nobody reads any
            stream.release()
        if stream is not None:
            self._trace("")
        self._let_go()
        blaming, self._blaming = self._blaming, []
        answering, fleet = self._answering, self._parts.fleet
        usage = answering.read_usage() if answering is not None and answering.is_accepted else None
        if usage is not None:
            for plan in blaming:
                fleet.note_contradicted(plan.node_id, self._need, usage.num_prompt_tokens)

    # -- the node that answers -------------------------------------------------------------------

    def _hear_answering(self, event: TransferEvent) -> None:
        """What the node that answers says of the blocks."""
        if self._is_released:
            return  # the first word of the end counts
        if isinstance(event, KvReserved) and self._reserved is None:
            self._reserved = event
            self._ask()
        elif isinstance(event, KvLanded):
            self._note_landed()
            self._end()
        elif isinstance(event, KvGaveUp):
            log.info(
                "hand_over_given_up",
                request_id=self._context.request_id,
                node_id=self._plan.node_id,
                reason=event.reason[:32],
            )
            outcome = HandOverOutcome.NOBODY if self._is_stopped else HandOverOutcome.GIVEN_UP
            self._parts.telemetry.count_hand_over(outcome)
            if event.reason == KV_LATE:
                self._note_late()
            self._end()

    def _note_landed(self) -> None:
        """The way has taken so long, counted from when the prompt had been computed."""
        now_s = self._parts.sources.monotonic_s()
        seconds = max(now_s - self._exported_s, 0.0)
        self._parts.telemetry.count_hand_over(HandOverOutcome.LANDED)
        self._parts.telemetry.count_step(Step.HAND_OVER, seconds)
        self._parts.fleet.locality.hand_over.note(self._need.num_prompt_tokens, seconds, now_s)

    def _note_late(self) -> None:
        """The way takes so long at least; or, when the prompt has not even been computed in time,
        its node has failed: others are asked, or nobody, until it has recovered.
        """
        if self._is_exported:
            meter, num_tokens = self._parts.fleet.locality.hand_over, self._need.num_prompt_tokens
            now_s = self._parts.sources.monotonic_s()
            seconds = now_s - self._exported_s
            if seconds > meter.estimate_s(num_tokens, now_s):  # who was in a hurry tells nothing
                meter.note(num_tokens, seconds, now_s)
        elif self._prefill is not None and self._has_had_its_time():
            self._was_late = True
            self._parts.fleet.note_failure(self._prefill.node_id, self._need.owner)

    def _has_had_its_time(self) -> bool:
        """True when the prompt's node has been silent for so long, or has taken so long in all,
        by this clock: that of the node which says so may be wrong, or it lies.
        """
        if self._asked is None:
            return False
        now_s, asked_s = self._parts.sources.monotonic_s(), self._asked[1]
        if self._computing is not None:
            asked_s = max(asked_s, self._computing.fed_s)  # it had no adapter before
        silent_s, whole_s = now_s - max(asked_s, self._heard_s), now_s - asked_s
        least_s = self._patience_s - _WAY_S
        return silent_s >= least_s or whole_s >= MAX_STRETCH * least_s

    def _end(self) -> None:
        """Nobody reads the exported blocks any more."""
        self._is_released = True
        if self._computing is None:
            self._let_go()
        else:
            self._computing.send_transfer(KvRelease())

    # -- the node that computes the prompt -------------------------------------------------------

    def _ask(self) -> None:
        """Has the prompt computed, by this node or the next; else says that nobody does."""
        while self._prefill is not None:
            if not self._is_lawful():
                self._let_go()
                break
            self._num_tries += 1
            prefill = self._prefill
            attempt = self._context.first_attempt + _PROMPT_ATTEMPTS
            attempt += self._context.num_attempts * _MAX_TRIES + self._num_tries
            grant = create_grant(self._context, self._need, prefill, attempt)
            self._asked = attempt, self._parts.sources.monotonic_s()
            try:
                ticket = self.create_ticket(KvHalf.PREFILL)
                links, adapter = self._parts.links, self._need.adapter
                stream = links.open(prefill.node_id, grant, self._body, ticket, adapter)
            except ServiceError as error:
                self._move_on(error)
                continue
            self._note_asked(prefill)
            self._computing, self._num_export_bytes, self._is_exported = stream, 0, False
            stream.on_transfer = self._hear_computing
            stream.listen(self._take)
            return
        if self._answering is not None:
            self._is_stopped = True
            self._answering.send_transfer(KvStop())

    def _note_asked(self, prefill: PrefillPlan) -> None:
        """The prompt is on its way to that node."""
        self._is_first_time = self._context.note_seen(prefill.node_id, prefill.region)
        self._context.note_moved(self._context)

    def _is_lawful(self) -> bool:
        """True where the node may have the prompt by now. Nothing here waits for the store: where
        something has changed there since the answer got its place, and be it another account, or
        another region's law, the prompt stays with it.
        """
        plan = msgspec.structs.replace(self._plan, prefill=self._prefill)
        need, fleet = self._need, self._parts.fleet
        is_law_known = need.has_laws_of(fleet.roster.laws.version)
        is_current = is_law_known and self._parts.is_current(need.generation)
        return is_current and fleet.is_lawful(plan, need)

    def _hear_computing(self, event: TransferEvent) -> None:
        """What the other node has exported goes on as it is."""
        if not isinstance(event, KvExported) or self._answering is None or self._is_released:
            return
        num_bytes = event.num_frame_bytes
        self._num_export_bytes += num_bytes
        if num_bytes > _MAX_EXPORT_BYTES or self._num_export_bytes > _MAX_EXPORTS_BYTES:
            self._break_off()
            return
        self._heard_s = self._parts.sources.monotonic_s()
        if event.is_last:
            self._exported_s = self._heard_s
            self._is_exported = True
        self._answering.send_transfer(KvImport(event, self._ticket_to_tell))
        self._ticket_to_tell = b""

    def _break_off(self) -> None:
        """The other node exports more than any prompt has: nothing of it is heard any more."""
        stream, self._computing = self._computing, None
        assert stream is not None, "an export of nobody"
        stream.on_transfer = None
        stream.listen(None)
        stream.release()
        self._move_on(StreamBroken("The node exported more blocks than a prompt has."))
        self._ask()

    def _take(self) -> None:
        """What else it says: that it has begun, and how it ended."""
        stream = self._computing
        if stream is None:
            return
        for event in stream.take_now():
            if isinstance(event, Accepted) and self._answering is not None:
                self._parts.fleet.health.refusals.note_taken(stream.node_id, self._need)
                self._parts.fleet.locality.note_prefill_accepted(self._need, stream.node_id)
                self._answering.note_prompt(event.num_prompt_tokens, event.num_cached_tokens)
            elif isinstance(event, Finished) and self._is_released:
                if not self._was_late:
                    self._parts.fleet.health.note_success(stream.node_id, self._need.owner)
                self._trace("")
                self._computing = None
                self._let_go()
            elif isinstance(event, Finished | Failed):
                self._computing = None
                self._fail(event, stream)

    def _fail(self, last: Finished | Failed, stream: NodeStream) -> None:
        """The other node has stopped early: the next one goes on, if there is one."""
        error: ServiceError = StreamBroken("The node gave the prompt up.")
        if isinstance(last, Failed):
            assert self._prefill is not None, "nobody to leave"
            error = read_node_error(self._prefill.node_id, last.error)
            error = hold_to_word(error, stream, self._need)
            if self._is_first_time and is_refusal(last.error, stream):
                self._context.forget_seen(self._prefill.node_id, self._prefill.region)
            is_taken = stream.is_accepted or stream.is_ours
            if finds_fault(error, self._need, self._prefill.card) and not is_taken:
                self._blaming.append(self._prefill)
        self._move_on(error, is_ours=stream.is_ours)
        if not self._is_released:
            self._ask()

    def _move_on(self, error: ServiceError, *, is_ours: bool = False) -> None:
        """Leaves a node that has failed, for another one or for none; why it is not asked again is
        said in ADR 0022.
        """
        prefill, fleet = self._prefill, self._parts.fleet
        assert prefill is not None, "nobody to leave"
        log.warning(
            "prefill_failed",
            request_id=self._context.request_id,
            node_id=prefill.node_id,
            error=error.code,
        )
        self._trace(error.code)
        if is_fault_of_node(error) and not self._was_late and not is_ours:
            fleet.note_failure(prefill.node_id, self._need.owner)
        self._let_go()
        if self._is_released or self._num_tries >= _MAX_TRIES:
            return
        self._need = msgspec.structs.replace(self._need, tried=self._need.tried | {prefill.node_id})
        self._prefill = fleet.plan_prefill(self._need, self._plan)
        if self._prefill is not None and self._answering is not None:
            self._ticket_to_tell = self._answering.seal(self.create_ticket(KvHalf.DECODE))

    def _trace(self, error: str) -> None:
        """Tells the trace how the attempt at the prompt has ended. The first call counts."""
        asked, self._asked = self._asked, None
        if asked is not None and self._prefill is not None:
            number, began_s = asked
            ended_s = self._parts.sources.monotonic_s()
            self._context.trace.note_prefill(number, began_s, ended_s, self._prefill.node_id, error)

    def _let_go(self) -> None:
        """The node that computed the prompt has one request fewer."""
        prefill, self._prefill = self._prefill, None
        if prefill is not None:
            self._parts.fleet.release(prefill)
