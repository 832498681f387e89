"""Where prompts and sessions have been, and what answers have been like: what routing learns.

Joins the prefix index, the sessions and running means; nothing of it is needed to be right, only to
be fast. Read next: `gateway.routing.prefix_index`, `gateway.routing.sessions`.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from contracts.fleet import ModelLoad, NodeReport
from contracts.grant import RetentionClass
from contracts.ids import ModelName, NodeId, RegionId
from contracts.inference import GenerateRequest, NodeRequest
from contracts.prefix_keys import skip_repeated, unpack_keys
from gateway.routing.hand_over_meter import HandOverMeter
from gateway.routing.prefix_index import PrefixIndex
from gateway.routing.prefix_keys import (
    BYTES_PER_TOKEN,
    expect_output,
    hash_opening,
    hash_owner,
    hash_prompt,
    hash_session,
    measure_prompt,
)
from gateway.routing.prompt_lengths import MOST_TIMES, PromptLengths
from gateway.routing.rings import Rings, create_compass, find_first_ring
from gateway.routing.route_plan import NO_HINTS, Hints, NodeSnapshot, Ring, RouteNeed, RoutePlan
from gateway.routing.sessions import SessionMap, choose_first_place

_USUAL_OUTPUT: Final = 128
_WEIGHT: Final = 0.05
"""Of the latest request in a running mean."""
_BYTES_PER_PIECE: Final = 512
_SLACK_TOKENS: Final = 192
"""Nodes cache whole blocks and we whole pieces: so much is no contradiction."""


class Locality:
    """What is known of one gateway's requests."""

    def __init__(self, sessions: SessionMap) -> None:
        """Nothing is known yet."""
        self._index = PrefixIndex()
        self._sessions = sessions
        self._told: dict[NodeId, bytes] = {}
        """The names of prompts that each node told last: it repeats them for a while."""
        self.hand_over: Final = HandOverMeter()
        self._lengths = PromptLengths()
        self._usual_output: dict[ModelName, float] = {}

    def describe(
        self,
        request: NodeRequest,
        allowed_regions: tuple[RegionId, ...] | None,
        cache_salt: bytes,
        retention: RetentionClass,
        session: bytes | None,
        generation: int = 0,
    ) -> RouteNeed:
        """What `request` needs, with its prompt's names unless nothing of it may remain."""
        leaves_nothing, owner = retention is RetentionClass.NONE, hash_owner(cache_salt)
        if not isinstance(request, GenerateRequest):
            return RouteNeed(
                request.model,
                allowed_regions,
                generation=generation,
                owner=owner,
                leaves_nothing=leaves_nothing,
            )
        model = request.model
        prompt = hash_prompt(request.prompt, model, cache_salt, request.adapter)
        num_bytes = prompt.num_bytes + sum(map(measure_prompt, request.further_prompts))
        usual = int(self._usual_output.get(model, _USUAL_OUTPUT))
        return RouteNeed(
            model,
            allowed_regions,
            generation=generation,
            rejects_busy=request.reject_if_busy,
            prefix_keys=prompt.keys if retention is RetentionClass.STANDARD else (),
            num_prompts=len(request.prompts),
            has_bad_words=bool(request.bad_words),
            has_constraint=request.is_constrained,
            is_scored=request.sampling.num_prompt_logprobs is not None,
            num_prompt_bytes=num_bytes,
            num_prompt_tokens=self._lengths.estimate(model, num_bytes),
            num_output_tokens=request.num_answers * expect_output(request, usual),
            session=_name_session(request, prompt.keys, cache_salt, retention, session),
            owner=owner,
            adapter=request.adapter,
            leaves_nothing=leaves_nothing,
            may_move=_may_move(request, retention),
        )

    def find_hints(
        self, need: RouteNeed, rings: Rings, nodes: Mapping[NodeId, NodeSnapshot], now_s: float
    ) -> Hints:
        """Who among `nodes` deserves a look first."""
        keys = need.prefix_keys
        if not keys and need.session is None:
            return NO_HINTS
        holders = self._index.find(keys, create_compass(need, rings.latencies_s, nodes))
        for_prompts: Sequence[NodeId] = ()
        if rings.prefilling:
            latencies_s = {ring.region: ring.latency_s for ring in rings.prefilling}
            for_prompts = self._index.find(
                keys, create_compass(need, latencies_s, nodes, is_for_prompts=True)
            )
        is_known = bool(holders or for_prompts)
        return Hints(
            holders,
            for_prompts,
            partial(self._index.measure, keys=keys) if is_known else None,
            self._find_pinned(need, rings.answering, now_s),
        )

    def note_sent(self, need: RouteNeed, node_id: NodeId, now_s: float) -> bool:
        """The request goes to `node_id`, which will have its prompt and its session.

        False while what it is thought to have of the prompt is on its way there itself.
        """
        if need.session is not None:
            self._sessions.pin(need.owner, need.session, node_id, now_s)
        return self._index.record(node_id, need.prefix_keys)

    def note_prefill_sent(self, need: RouteNeed, node_id: NodeId) -> None:
        """The prompt goes to `node_id`, which computes it for another, and will have it, too."""
        self._index.record(node_id, need.prefix_keys)

    def note_prefill_accepted(self, need: RouteNeed, node_id: NodeId) -> None:
        """The node has accepted the prompt that it computes for another."""
        self._index.prove(node_id, need.prefix_keys)  # it is not told what is cached there

    def note_accepted(
        self, need: RouteNeed, plan: RoutePlan, num_prompt: int, num_cached: int
    ) -> None:
        """The node has counted the prompt and what it had of it."""
        self._lengths.note(need.model, need.num_prompt_bytes, num_prompt)
        self._lengths.note_new(need.model, plan.num_new_tokens)
        self._index.prove(plan.node_id, need.prefix_keys)
        if plan.num_cached_tokens and plan.is_proven:
            self._index.correct(plan.node_id, plan.num_cached_tokens, num_cached, _SLACK_TOKENS)

    def note_output(self, model: ModelName, num_tokens: int) -> None:
        """An answer is complete: one choice of a request, or the mean of several."""
        before = self._usual_output.get(model, _USUAL_OUTPUT)
        told = min(num_tokens, MOST_TIMES * max(before, 1.0))
        self._usual_output[model] = before + _WEIGHT * (told - before)

    def find_usual_new_tokens(self, model: ModelName) -> float:
        """What there is to compute of the model's prompts on average, as choices reckon it, of
        those that nodes have taken; 0 before the first one.
        """
        return self._lengths.find_usual_new(model)

    def note_capacity(self, node_id: NodeId, loads: Sequence[ModelLoad]) -> None:
        """The node's caches together are this large."""
        num_tokens = sum(load.num_blocks * load.block_size for load in loads)
        if num_tokens:
            self._index.set_capacity(node_id, int(num_tokens * BYTES_PER_TOKEN / _BYTES_PER_PIECE))

    def note_told(self, report: NodeReport, now_s: float, *, is_near: bool) -> None:
        """A node says what has lately been there, through whichever gateway: sessions, and prompts,
        which are remembered of those that are near.
        """
        self._sessions.hear(report.sessions, report.node_id, now_s)
        if is_near:
            before = self._told.get(report.node_id, b"")
            self._told[report.node_id] = report.prefixes
            news = skip_repeated(report.prefixes, before)
            self._index.hear(report.node_id, unpack_keys(news))

    def dismiss(self, node_id: NodeId) -> None:
        """The node is here no more, and what it has told of with it."""
        self.forget(node_id)
        self._sessions.forget(node_id)

    def forget(self, node_id: NodeId) -> None:
        """The node has begun a new life, with empty caches."""
        self._told.pop(node_id, None)
        self._index.forget(node_id)

    def _find_pinned(self, need: RouteNeed, rings: Sequence[Ring], now_s: float) -> NodeId | None:
        """Where the session was last, else where it should begin if its prompt is of no account."""
        if need.session is None:
            return None
        place = self._sessions.find(need.owner, need.session, now_s)
        if place is not None or need.prefix_keys:
            return place
        first = find_first_ring(need, rings)
        if first is None:
            return None
        return choose_first_place(need.session, first.awake or first.node_ids)


def _name_session(
    request: GenerateRequest,
    keys: Sequence[int],
    cache_salt: bytes,
    retention: RetentionClass,
    session: bytes | None,
) -> int | None:
    """The session by the client's word, else by how the conversation began, unless it is so short
    that its cache is worth nothing.
    """
    if session is not None:
        return hash_session(session, request.model, cache_salt)
    if not keys or retention is not RetentionClass.STANDARD:
        return None
    return hash_opening(request.prompt, request.model, cache_salt)


def _may_move(request: GenerateRequest, retention: RetentionClass) -> bool:
    """True when another node may compute the prompt: nothing of it is to be told, and its KV may
    leave a device.
    """
    is_told = request.sampling.num_prompt_logprobs is not None or request.resumption is not None
    is_one = not request.further_prompts
    return retention is RetentionClass.STANDARD and is_one and not is_told
