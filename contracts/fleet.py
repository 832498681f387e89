"""What a node says of itself: where it stands, what it serves and how busy it is.

Owns the report; must not know how it is collected or what the router makes of it.
Read next: `contracts.wire`, whose stream 0 carries the reports.
"""

from enum import StrEnum
from typing import Annotated

import msgspec

from contracts.ids import BootId, ModelName, NodeId, RegionId
from contracts.kv_transfer import KvEndpoint
from contracts.node_roles import NodeRole
from contracts.placement import MemoryUse, ModelPlacement
from contracts.prefix_keys import MAX_TOLD_BYTES
from contracts.short_text import shorten

_Count = Annotated[int, msgspec.Meta(ge=0, lt=2**48)]
_Rate = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
MAX_REPORT_BYTES = 384 * 1024
"""Of a report as it is sent, of which a gateway reads no more: some 300 models with all that can be
said of each, and all names of sessions and prompts.
"""
MAX_SESSIONS = 1024
"""That a report names."""
COMPARED_SEQUENCES = 64
"""For which nodes say how long a step takes them."""


class ModelFeature(StrEnum):
    """What a model can do beyond text, under the names of the catalogue's properties."""

    FUNCTION_CALLING = "function_calling"
    """Its template takes tools, and its calls are understood."""
    REASONING = "reasoning"
    """It thinks before it answers, and its thoughts are told apart."""


class Task(StrEnum):
    """What a model is for, by the names of the Workers AI catalogue."""

    TEXT_GENERATION = "Text Generation"
    TEXT_EMBEDDINGS = "Text Embeddings"
    RERANKER = "Reranker"
    TEXT_CLASSIFICATION = "Text Classification"


class NativeShape(StrEnum):
    """What the native route answers with."""

    CLASSIC = "classic"
    """`{response, usage}`; 256 tokens unless the request says otherwise."""
    CHAT = "chat"
    """A chat completion inside the envelope; as long as the context allows."""


class ModelCard(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model that a node serves, as clients may see it.

    Units: `context_window` in tokens, `created_unix_s` in seconds since 1970.
    """

    name: ModelName
    revision: str
    """Digest of the checkpoint: same revision, same weights."""
    task: str
    """The Workers AI name of the task, such as `Text Generation`."""
    description: str
    context_window: _Count
    created_unix_s: int = 0
    features: tuple[ModelFeature, ...] = ()
    native_shape: NativeShape = NativeShape.CLASSIC
    output_dimensions: int = 0
    """Of an embedding; 0 for models that give none."""
    labels: tuple[str, ...] = ()
    """What a classifier tells apart, in the order of its results."""
    engine: str = ""
    """Whose engine computes it, such as `vllm`; empty: our own. Of another's neither token ids nor
    cached tokens are known while it answers, so that nobody can go on with half an answer."""
    may_keep: bool = False
    """Something of a request may remain where it is computed: nothing for accounts whose retention
    is `none`."""
    max_prompts: _Count = 1
    """That one request may hold; nodes of versions before would answer the first alone."""
    max_adapter_rank: _Count = 0
    """The largest rank of an adapter that a request may bring; 0: none may, and nodes of versions
    without adapters would answer without."""
    takes_bad_words: bool = False
    """Words that a request forbids are kept out of its answers; nodes of versions before would
    write them."""


class ModelLoad(msgspec.Struct, frozen=True, kw_only=True):
    """How busy one resident model is. Numbers that no node can have, NaN among them, are not read:
    the cost of a node is computed from these.
    """

    name: ModelName
    is_ready: bool
    num_running: _Count
    num_waiting: _Count
    num_blocks: _Count
    num_free_blocks: _Count
    """Blocks that can be handed out now, cached ones without an owner included."""
    block_size: _Count = 16
    """Tokens that a block holds."""
    num_queued_tokens: _Count = 0
    """Tokens of prompts that are still to be computed, waiting or under way."""
    prefill_tokens_per_s: _Rate = 0.0
    """As measured lately under load; 0: not yet."""
    decode_tokens_per_s: _Rate = 0.0
    """The same for generated tokens, of all sequences together: the most there were lately."""
    decode_step_s: _Rate = 0.0
    """Of a step that only generates, for `COMPARED_SEQUENCES`, as far as the node's steps tell: by
    this nodes are compared, of which one is no faster for having more to do. Seconds; 0: not yet.
    """
    max_running: _Count = 0
    """Requests that it computes at the same time; 0: the node does not say."""
    num_hung: _Count = 0
    """Times that its engine was killed because it got no further, since the node was started."""
    num_coming: _Count = 0
    """Requests that neither run nor wait for room: their KV blocks come from elsewhere, or the
    engine has yet to see them. Each takes a place soon."""
    num_preempted: _Count = 0
    """Times that a request gave up its place for want of KV memory, since its engine started."""


class FailedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model that a node should serve and cannot, until it is started again."""

    name: ModelName
    reason: str
    """For operators only: it may name files."""


def create_failed_model(name: ModelName, reason: str) -> FailedModel:
    """What is told of a model that has failed, however much an exception has said."""
    return FailedModel(name=name, reason=shorten(reason))


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """A node's own account of itself: sent when a gateway connects, about once a second, and soon
    after a model has changed or has become idle.
    """

    node_id: NodeId
    boot_id: BootId
    region: RegionId
    jurisdiction: str
    is_draining: bool
    models: tuple[ModelCard, ...]
    loads: tuple[ModelLoad, ...]
    failed: tuple[FailedModel, ...] = ()
    placements: tuple[ModelPlacement, ...] = ()
    """Where each model's weights are, on nodes that move them."""
    memory: MemoryUse = MemoryUse()
    role: NodeRole = NodeRole.MIXED
    roles: tuple[NodeRole, ...] = ()
    """Those that a planner may give it; empty: its role is its settings'."""
    suggested_role: NodeRole | None = None
    """Another one of them that a planner thinks better and has not given it."""
    kv_endpoints: tuple[KvEndpoint, ...] = ()
    """Of models whose KV blocks can come and go."""
    sessions: Annotated[tuple[int, ...], msgspec.Meta(max_length=MAX_SESSIONS)] = ()
    """Names of the sessions that have lately sent a request here (`Grant.session`), the latest
    last: so that every gateway learns where those are that came in through another one.
    """
    prefixes: Annotated[bytes, msgspec.Meta(max_length=MAX_TOLD_BYTES)] = b""
    """Names of prompts' beginnings that have lately been here (`Grant.prefixes`), the latest last:
    all that the node remembers in the first report of a connection, then what is news."""
