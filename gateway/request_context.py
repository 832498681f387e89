"""What is known of one request while it is served, and the beginning and end of all of them.

Contexts are mutable and owned by `gateway.request_path` and the steps it calls. Owns request ids,
deadlines and the bounds on requests that are open at once, of all and of one account; must not know
how anything else is found out.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Protocol

import msgspec

from contracts.errors import PoolSaturated
from contracts.ids import AccountId, ModelName, NodeId, RegionId, RequestId, create_request_id
from contracts.inference import Usage
from contracts.usage import NodePlace
from gateway.fair_share import is_fair
from gateway.request_trace import NOT_TRACED, RequestEnd, RequestTrace, Tracer
from gateway.settings import LimitSettings
from gateway.sources import Sources
from tenancy.interfaces import Principal

UNKNOWN_MODEL: Final = ModelName("")
_REQUEST_ID_BITS: Final = 74
_ATTEMPTS_OF_A_RUN: Final = 1 << 20
"""More than any run of an item makes, those at a prompt alone included."""


class Tally(Protocol):
    """Four counts of one attempt at a request, in this order: prompt, cached, generated and
    reasoning tokens. A list, or cells of a file that outlives the process.
    """

    def __getitem__(self, index: int, /) -> int:
        """One of the counts."""
        ...

    def __iter__(self) -> Iterator[int]:
        """All of them."""
        ...

    def __setitem__(self, index: int, value: int, /) -> None:
        """Sets one of them."""
        ...


class Asker(Protocol):
    """Whoever waits for the answer to one request."""

    @property
    def headers(self) -> Sequence[tuple[bytes, bytes]]:
        """Of the request; names in lower case."""
        ...

    @property
    def is_lost(self) -> bool:
        """True once nobody waits any more."""
        ...

    def watch(self, on_lost: Callable[[], None], /) -> None:
        """Calls `on_lost` as soon as nobody waits, now if that is so."""
        ...


class Audible(Protocol):
    """An exchange that can be listened to."""

    tap: Callable[[bytes], None] | None
    """Hears the body of the answer as it is sent."""

    @property
    def headers(self) -> Sequence[tuple[bytes, bytes]]:
        """Of the request; names in lower case."""
        ...


def create_tally() -> Tally:
    """Counts in memory, all zero."""
    return [0, 0, 0, 0]


def _keep_nothing(context: "RequestContext") -> None:
    """Nobody writes down where the request is."""


class RequestContext(msgspec.Struct):
    """One request, from its headers to its settlement.

    Units: `started_s` in seconds of the monotonic clock.
    """

    request_id: RequestId
    route: str
    """The route's name, for metrics and logs."""
    started_s: float
    started_unix_s: float
    deadline_unix_ms: int
    model: ModelName = UNKNOWN_MODEL
    """Set once a node offers it: names that clients make up never reach metrics."""
    generation: int = 0
    """Of the store's states, the one that was known when the request came."""
    principal: Principal | None = None
    node_id: NodeId | None = None
    """The node of the latest attempt, and its region."""
    region: RegionId | None = None
    num_attempts: int = 0
    first_attempt: int = 0
    """Attempts are numbered from here: a node takes no number twice under the same request id."""
    is_refused: bool = False
    """The node of the latest attempt was not reached, or has refused it before it took it."""
    seen: tuple[NodePlace, ...] = ()
    """Where something of it may have been computed, in order, besides at the node that has it."""
    has_unknown_runs: bool = False
    """An item of a batch that was begun before, nobody knows where."""
    usage_place: int = -1
    """Of the file of open usage, in which `note_moved` writes down where it is now."""
    note_moved: Callable[["RequestContext"], None] = _keep_nothing
    emptied: frozenset[NodeId] = frozenset()
    """Nodes that it left because they were to be emptied: at each of them one attempt is free."""
    doubted: NodeId | None = None
    """A node that found fault with it, as with all requests lately: another was asked after it."""
    usage: Usage | None = None
    """Of the attempt that answered, or failed last: what its node has told, or what had come from
    it when it went. The tenant pays for this: for what was served, and not for what our nodes have
    lost on the way to it."""
    is_repeatable: bool = False
    """True for an item of a batch: it is run again under the same id until it is answered, so that
    nothing but its answer may leave a record."""
    usage_of_retried: Usage | None = None
    """What the attempts before that one consumed, summed: ours to pay, yet it kept nodes busy."""
    queued_s: float = 0.0
    """How long it has waited for a node with room."""
    wants_explanation: bool = False
    explanation: bytes = b""
    """A header line on why the node was chosen, for clients that ask."""
    first_text_s: float | None = None
    """When a stream's first text went out, in seconds since the request began."""
    limit_lines: bytes = b""
    """Header lines on where the client's limit stands."""
    is_counted: bool = False
    """Among the open requests of its account."""
    trace: RequestTrace = NOT_TRACED
    """Hears what the request went through, where requests are traced."""

    @property
    def deadline_s(self) -> float:
        """The deadline by the monotonic clock."""
        return self.started_s + self.deadline_unix_ms / 1000 - self.started_unix_s

    @property
    def usage_of_all(self) -> Usage | None:
        """What all attempts consumed together; None when no node has told any."""
        if self.usage_of_retried is None or self.usage is None:
            return self.usage or self.usage_of_retried
        return add_usages([self.usage_of_retried, self.usage])

    def set_usage_aside(self) -> None:
        """The attempt is over and another follows."""
        self.usage_of_retried, self.usage = self.usage_of_all, None

    def note_seen(self, node_id: NodeId, region: RegionId) -> bool:
        """Something may have been computed there; False where that was known."""
        place = NodePlace(node_id, region)
        if place in self.seen:
            return False
        self.seen += (place,)
        return True

    def forget_seen(self, node_id: NodeId, region: RegionId) -> None:
        """Nothing has been computed there after all."""
        self.seen = tuple(one for one in self.seen if one != NodePlace(node_id, region))

    def list_places(self) -> tuple[NodePlace, ...]:
        """Everywhere that something may have been computed, in order, where it is now last."""
        if self.node_id is None or self.region is None or self.is_refused:
            return self.seen
        now = NodePlace(self.node_id, self.region)
        return (*(one for one in self.seen if one != now), now)


def describe_end(context: RequestContext, status: int) -> RequestEnd:
    """What the trace of a request says of all of it."""
    node_id = context.node_id
    return RequestEnd(
        status,
        context.model,
        context.usage,
        context.num_attempts,
        None if node_id is None else (node_id, context.region),
        context.first_text_s,
    )


def add_usages(usages: Sequence[Usage]) -> Usage:
    """The sum of `usages`, field by field."""
    return Usage(*map(sum, zip(*map(msgspec.structs.astuple, usages), strict=True)))


class Recorder(Protocol):
    """Whoever writes down what is asked and answered."""

    def begin(self, context: RequestContext, exchange: Audible, body: bytes | bytearray) -> None:
        """The request has come; its sender is known."""
        ...

    def end(self, context: RequestContext, status: int) -> None:
        """It is over; the same for one that has not begun."""
        ...


class OpenRequests:
    """Begins and ends requests."""

    def __init__(
        self,
        limits: LimitSettings,
        gateway_region: RegionId,
        tracer: Tracer,
        sources: Sources,
        read_generation: Callable[[], int],
    ) -> None:
        """`gateway_region` is where this gateway stands, for the ray id; `read_generation` says
        which of the store's states is known.
        """
        self._read_generation = read_generation
        self.tracer: Final = tracer
        self._limits = limits
        self._sources = sources
        self._num_of_account: dict[AccountId, int] = {}
        """Open requests whose sender is known; none is 0."""
        self._ray_suffix = f"-{gateway_region.upper()}"
        self._num_open = 0

    @property
    def num_open(self) -> int:
        """Requests that have begun and not ended."""
        return self._num_open

    @property
    def is_half_full(self) -> bool:
        """True when half of the requests are open that may be."""
        return self._num_open * 2 >= self._limits.max_concurrent_requests

    def begin(
        self, route: str, request_id: RequestId | None = None, run: int = 0
    ) -> RequestContext:
        """A new request's context; `end` must follow. An item of a batch brings its own id, under
        which no other run is its `run`-th.
        """
        self._num_open += 1
        unix_s = self._sources.unix_s()
        return RequestContext(
            request_id=request_id
            or create_request_id(int(unix_s * 1000), self._sources.random_bits(_REQUEST_ID_BITS)),
            is_repeatable=request_id is not None,
            first_attempt=run * _ATTEMPTS_OF_A_RUN,
            route=route,
            started_s=self._sources.monotonic_s(),
            started_unix_s=unix_s,
            deadline_unix_ms=int((unix_s + self._limits.request_deadline_s) * 1000),
            generation=self._read_generation(),
        )

    def trace(
        self, context: RequestContext, headers: Iterable[tuple[bytes, bytes]], path: str
    ) -> None:
        """Lets a request of the route with this template be traced, if it is drawn."""
        started = context.started_s, context.started_unix_s
        context.trace = self.tracer.begin(context.request_id, started, headers)
        context.trace.describe(path)

    def end(self, context: RequestContext, status: int = 0) -> float:
        """How long the request took, in seconds."""
        self._num_open -= 1
        if context.is_counted:
            self._leave(context)
        ended_s = self._sources.monotonic_s()
        if context.trace.is_on:
            context.trace.end(ended_s, describe_end(context, status))
        return ended_s - context.started_s

    def require_room(self) -> None:
        """Raises `PoolSaturated` when more requests are open than may be."""
        if self._num_open > self._limits.max_concurrent_requests:
            raise PoolSaturated("This gateway is serving as many requests as it can.")

    def require_share(self, context: RequestContext) -> None:
        """Counts the request among those of its account. Raises `PoolSaturated` when these have
        nearly all places: what is left is for others, however slowly bodies or answers come.
        """
        principal = context.principal
        assert principal is not None
        num_own = self._num_of_account.get(principal.account_id, 0) + 1
        num_free = self._limits.max_concurrent_requests - self._num_open + 1
        if not is_fair(num_own, num_free):
            raise PoolSaturated(
                "This account has nearly all requests open that this gateway takes."
            )
        self._num_of_account[principal.account_id] = num_own
        context.is_counted = True

    def _leave(self, context: RequestContext) -> None:
        """The account of the request has one less."""
        assert context.principal is not None
        account_id = context.principal.account_id
        self._num_of_account[account_id] -= 1
        if not self._num_of_account[account_id]:
            del self._num_of_account[account_id]

    def measure_s(self, context: RequestContext) -> float:
        """Seconds since the request began."""
        return self._sources.monotonic_s() - context.started_s

    def list_headers(self, context: RequestContext) -> list[tuple[bytes, bytes]]:
        """The ids of the request and, once it has one, its node and region."""
        lines = self.format_headers(context).split(b"\r\n")[:-1]
        return [(name, value) for name, _, value in (line.partition(b": ") for line in lines)]

    def format_headers(self, context: RequestContext) -> bytes:
        """The same as whole lines. Ids, node and region are of checked shape.

        The request's id is there under OpenAI's name and Anthropic's (`request-id`).
        """
        request_id = context.request_id
        ray = request_id[-12:] + request_id[19:23] + self._ray_suffix
        ids = f"x-request-id: {request_id}\r\nrequest-id: {request_id}\r\ncf-ray: {ray}\r\n"
        if context.node_id is None:
            return ids.encode() + context.explanation + context.limit_lines
        lines = (
            f"{ids}x-hearth-node: {context.node_id}\r\nx-hearth-region: {context.region}\r\n"
        ).encode()
        return lines + context.explanation + context.limit_lines
