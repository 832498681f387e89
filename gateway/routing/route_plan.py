"""What routing talks about: nodes as last heard of, what a request needs, the decision and its why.

Plain data. Read next: `gateway.routing.choose_node`, `gateway.routing.cost`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from contracts.adapters import AdapterRef
from contracts.fleet import ModelCard, ModelLoad
from contracts.ids import BootId, ModelName, NodeId, RegionId
from contracts.kv_transfer import KvEndpoint
from contracts.node_roles import NodeRole
from contracts.placement import MemoryUse, ModelPlacement, Tier
from gateway.routing.pace import Pace, measure_pace

_LARGE_BYTES: Final = 65_536
"""Of a prompt that comes in fragments, of which a node takes so many at once."""


class Rejection(StrEnum):
    """Why a node was passed over, in the order of the filters."""

    UNKNOWN = "unknown"
    """It has never reported, so that its region is not known either."""
    RESIDENCY = "residency"
    MODEL_ABSENT = "model_absent"
    ADAPTER = "adapter"
    """It computes no adapters of that rank."""
    OTHER_REVISION = "other_revision"
    """It has other weights under the model's name: half an answer cannot be continued there."""
    PROMPTS = "prompts"
    """It takes fewer prompts at once than the request has."""
    BAD_WORDS = "bad_words"
    """It would write the words that the request forbids."""
    CONTEXT = "context"
    """Its context is too short for the request, as nodes with one as short have said."""
    RETENTION = "retention"
    """Something of the request may remain there, and nothing of it must."""
    UNREACHABLE = "unreachable"
    DRAINING = "draining"
    REPORT_STALE = "report_stale"
    SATURATED = "saturated"
    BUSY = "busy"
    """The request would have to wait there, and does not want to."""
    TRIED = "tried"
    BREAKER_OPEN = "breaker_open"
    """It has failed lately. This and what follows are taken when nobody else is left."""
    ON_PROBATION = "on_probation"
    """It is being tried again with a few requests, and has those already."""
    REFUSING = "refusing"
    """It has refused such requests lately, though it has room by its own word."""
    MODEL_NOT_READY = "model_not_ready"
    """The node lets requests wait for a while."""
    PREFILL_ONLY = "prefill_only"
    """It computes prompts for others."""


TROUBLES = frozenset({Rejection.BREAKER_OPEN, Rejection.ON_PROBATION, Rejection.REFUSING})


class Pick(StrEnum):
    """What a node was chosen for."""

    COST = "cost"
    """It is expected to answer first."""
    PREFIX = "prefix"
    """The same, and it has the beginning of the prompt."""
    SESSION = "session"
    """The session was there before, or begins there."""


class NodeSnapshot(msgspec.Struct, frozen=True):
    """A node as last heard of; replaced as a whole by each report."""

    node_id: NodeId
    is_connected: bool
    boot_id: BootId | None
    region: RegionId | None
    """None until the node has reported: then it is in no region that anyone may rely on."""
    jurisdiction: str
    is_draining: bool
    reported_s: float
    """Monotonic time of the last report."""
    num_reports: int
    """Reports so far, which names the last one."""
    cards: Mapping[ModelName, ModelCard]
    loads: Mapping[ModelName, ModelLoad]
    failed: Mapping[ModelName, str]
    """Models that it should serve and cannot, with the reason, which is for operators only."""
    placements: Mapping[ModelName, ModelPlacement]
    """Where its models' weights are, if it says so."""
    memory: MemoryUse
    role: NodeRole = NodeRole.MIXED
    roles: tuple[NodeRole, ...] = ()
    """Those that a planner may give it."""
    suggested_role: NodeRole | None = None
    """One of them that a planner thinks better."""
    kv_endpoints: Mapping[ModelName, KvEndpoint] = msgspec.field(
        default_factory=dict[ModelName, KvEndpoint]
    )
    """Of models whose KV blocks can come and go."""
    worked: Mapping[ModelName, int] = msgspec.field(default_factory=dict[ModelName, int])
    """For each model the last report by which it had anything to do."""
    is_drained: bool = False
    """Operators want it to get nothing new; `is_draining` is the node's own word."""
    paces: dict[ModelName, Pace] = msgspec.field(default_factory=dict[ModelName, Pace])
    """Those that were asked for; of this snapshot alone, however it came about."""

    def __post_init__(self) -> None:
        """What was worked out for another, of which this may be a copy, does not hold for this."""
        msgspec.structs.force_setattr(self, "paces", {})

    @property
    def is_leaving(self) -> bool:
        """True when nothing new should go there, whoever says so."""
        return self.is_draining or self.is_drained

    def has_free_place(self, model: ModelName) -> bool:
        """True where one request more would not wait, by the node's last word."""
        load = self.loads.get(model)
        if load is None or not load.is_ready or load.num_waiting or self.is_leaving:
            return False
        return not load.max_running or load.num_running + load.num_coming < load.max_running

    def find_pace(self, model: ModelName) -> Pace:
        """What the report of one of its models comes to."""
        pace = self.paces.get(model)
        if pace is None:
            pace = measure_pace(self.loads[model], self.find_wake_s(model))
            self.paces[model] = pace
        return pace

    def find_wake_s(self, model: ModelName) -> float | None:
        """Seconds until the model's weights are where it can compute; None when nobody can tell,
        as while it is loaded for the first time and nobody waits for it, or is started again.
        """
        if self.loads[model].is_ready:
            return 0.0
        placement = self.placements.get(model)
        if placement is None:
            return None
        is_expected = placement.is_moving and (placement.num_waiting or placement.num_wakes)
        if placement.tier is Tier.GPU and not (is_expected and placement.wake_s):
            return None
        is_coming = placement.is_moving or placement.num_waiting
        return placement.wake_s / 2 if is_coming else placement.wake_s


class RequestKind(NamedTuple):
    """What decides whether a node that takes one request takes another."""

    model: ModelName
    has_adapter: bool
    has_constraint: bool
    is_large: bool


class RouteNeed(msgspec.Struct, frozen=True):
    """What a request asks of a node; made by `need_description`, with what `locality` knows of its
    prompt. Units: tokens.
    """

    model: ModelName
    allowed_regions: tuple[RegionId, ...] | None
    """None means any, an empty tuple none at all."""
    jurisdictions: frozenset[str] | None = None
    """Where a node has to stand by its own word, too; None: anywhere."""
    disputed: frozenset[RegionId] = frozenset()
    """Regions that would be among the allowed if all that is said of their law were the same."""
    preferred: tuple[frozenset[RegionId], ...] = ()
    """Groups of regions: where one has room, nobody goes on to the next, or anywhere else."""
    generation: int = 0
    """Of the store, whose rules these are."""
    laws: int = 0
    """The version of the table of laws that told regions by jurisdiction."""
    tried: frozenset[NodeId] = frozenset()
    """Nodes that it shall not go to: they have refused, failed or lost it, or are passed over."""
    revision: str | None = None
    """Of the weights, where an answer has begun with them."""
    min_context: int = 0
    """Tokens that the node's context must have: nodes with less have refused the request for that,
    or cannot go on with what was answered."""
    rejects_busy: bool = False
    """True: rather no answer than one that waits."""
    may_wait: bool = False
    """It can wait for a node in order that is full: better than to go to one that has failed."""
    prefix_keys: tuple[int, ...] = ()
    """Names of ever longer beginnings of the prompt, in the account's own namespace."""
    num_prompts: int = 1
    has_bad_words: bool = False
    """There are words that the answer must not contain."""
    has_constraint: bool = False
    """The answer has to fit a grammar."""
    is_scored: bool = False
    """The tokens of the prompt are scored as well: all of it is computed, whatever is cached."""
    num_prompt_bytes: int = 0
    """Of all prompts together, as are the next two."""
    num_prompt_tokens: int = 0
    """An estimate."""
    num_output_tokens: int = 0
    """What the answer is expected to have."""
    num_asked_tokens: int = 0
    """Of one choice of the answer, as far as the client says."""
    num_bytes: int = 0
    """Of the whole request as it is sent; 0 where nobody else has the model."""
    session: int | None = None
    """The session that this belongs to, in the account's own namespace: by the client's word, or
    the conversation's opening."""
    owner: int = 0
    """Stands for the account, where sessions are kept and refusals counted."""
    adapter: AdapterRef | None = None
    """What it is to be computed with."""
    leaves_nothing: bool = False
    """Nothing of it may remain where it is computed."""
    may_move: bool = False
    """What is computed of the prompt may leave the node that computes it."""

    def may_use(self, region: RegionId) -> bool:
        """True for a region that is allowed; what a node says of its law is another question."""
        return self.allowed_regions is None or region in self.allowed_regions

    def has_laws_of(self, version: int) -> bool:
        """True when no law of that version is news: it is bound to none, or knows them."""
        return self.jurisdictions is None or self.laws == version

    @property
    def kind(self) -> RequestKind:
        """The kind of the request."""
        is_large = self.num_prompt_bytes >= _LARGE_BYTES
        return RequestKind(self.model, self.adapter is not None, self.has_constraint, is_large)

    @property
    def is_bound(self) -> bool:
        """True when there are places where it may not go."""
        return self.allowed_regions is not None or self.jurisdictions is not None


@dataclass(frozen=True, slots=True)
class RouteBounds:
    """When a node counts as full. Units: seconds, requests."""

    report_ttl_s: float
    max_waiting_per_model: int
    """Beyond those that it computes."""


@dataclass(slots=True)
class Sent:
    """What has become of a node's load for a model since its last report, as far as we did it."""

    num_requests: int = 0
    """That went there and are not over."""
    num_tokens: int = 0
    """Prompt tokens that it has to compute for those."""
    num_over: int = 0
    """That the report counts, and that are over."""
    num_held: int = 0
    """All prompt tokens of the former less those of the latter."""


class Ring(msgspec.Struct, frozen=True):
    """Nodes of one region that have offered a model. Units: seconds."""

    latency_s: float
    """From this gateway to the region and back."""
    region: RegionId
    node_ids: Sequence[NodeId]
    awake: Sequence[NodeId] = ()
    """Those of them whose model was where it can compute when they last said so."""


class Hints(msgspec.Struct, frozen=True):
    """Nodes that deserve a look before all others."""

    holders: Sequence[NodeId] = ()
    """They are thought to have most of the prompt, and could answer."""
    prompt_holders: Sequence[NodeId] = ()
    """The same of nodes that are there for prompts."""
    measure_cached: Callable[[NodeId], int] | None = None
    """How many bytes of the prompt a node is thought to have; None: nothing is known."""
    pinned: NodeId | None = None
    """Where the session was last, or is to begin."""


NO_HINTS = Hints()


class FleetState(msgspec.Struct, frozen=True):
    """All that a choice rests on."""

    now_s: float
    """Monotonic."""
    bounds: RouteBounds
    nodes: Mapping[NodeId, NodeSnapshot]
    rings: Sequence[Ring]
    """Who answers with the model that is asked for, nearest first."""
    sent: Mapping[tuple[NodeId, ModelName], Sent]
    troubled: Mapping[NodeId, Rejection]
    """One of `TROUBLES`; those without are not listed."""
    prefill_rings: Sequence[Ring] = ()
    """Who computes prompts of the model for others, nearest first."""
    latencies_s: Mapping[RegionId, float] = msgspec.field(default_factory=dict[RegionId, float])
    """To the regions of `rings`."""
    absent: Sequence[NodeSnapshot] = ()
    """Nodes that operators count on and that are not there: nobody is sent to them, and they say
    what there will be again."""
    list_kinds: Callable[[ModelName], Sequence[NodeSnapshot]] | None = None
    """One of `nodes` of each kind that is told apart where nobody is chosen; None: each is one."""
    usual_new_tokens: float = 0.0
    """What nodes compute of a prompt for the model, on average; 0: nobody knows."""


def keep_only(state: FleetState, node_id: NodeId) -> FleetState:
    """The same with one node, so that a choice can only be that one."""
    rings = [
        Ring(ring.latency_s, ring.region, (node_id,))
        for ring in state.rings
        if node_id in ring.node_ids
    ]
    nodes = {node_id: state.nodes[node_id]}
    return msgspec.structs.replace(state, nodes=nodes, rings=rings, list_kinds=None)


class PrefillPlan(msgspec.Struct, frozen=True):
    """The node that computes the prompt for another one, which answers."""

    node_id: NodeId
    region: RegionId
    card: ModelCard
    num_reports: int
    """Reports of the node that the choice rests on."""
    cost_s: float
    """Until the blocks are expected where the answer is given."""
    num_cached_tokens: int
    """Of the prompt, expected."""
    num_new_tokens: int
    endpoint: KvEndpoint
    """Where the blocks are fetched."""
    target: KvEndpoint
    """Where they are wanted."""


class RoutePlan(msgspec.Struct, frozen=True):
    """The decision and how it came about."""

    node_id: NodeId
    region: RegionId
    card: ModelCard
    num_reports: int
    """Reports of the node that the choice rests on."""
    pick: Pick
    first_token_s: float
    """How long the first tokens of the answer are expected to take."""
    num_cached_tokens: int
    """Of the prompt, expected."""
    num_new_tokens: int
    """Of the prompt, to be computed as far as is known."""
    num_seen: int
    """Nodes that were looked at."""
    rejected: tuple[tuple[NodeId, Rejection], ...]
    prefill: PrefillPlan | None = None
    """Who computes the prompt; None: the node itself."""
    is_proven: bool = True
    """False where the cached tokens are those of a prompt that was on its way there: that the node
    does not have them yet says nothing of its cache."""
    num_spilled: int = 0
    """Groups of preferred regions that had no room."""


def is_lawful(node: NodeSnapshot, need: RouteNeed) -> bool:
    """True when the account's data may go to `node`."""
    region, allowed = node.region, need.allowed_regions
    if region is None or (allowed is not None and region not in allowed):
        return False
    return need.jurisdictions is None or node.jurisdiction in need.jurisdictions


def takes_adapter(card: ModelCard, need: RouteNeed) -> bool:
    """True when whoever offers `card` can compute the request with its adapter, if it has one."""
    return need.adapter is None or card.max_adapter_rank >= need.adapter.rank


def estimate_cached_tokens(need: RouteNeed, hints: Hints, node_id: NodeId) -> int:
    """Tokens of the prompt that a node is thought to have, and need not compute."""
    if hints.measure_cached is None or need.is_scored or not need.num_prompt_bytes:
        return 0
    num_tokens = need.num_prompt_tokens * hints.measure_cached(node_id) // need.num_prompt_bytes
    return min(num_tokens, need.num_prompt_tokens)
