"""What is known of one request while it is served, and the beginning and end of all of them.

Contexts are mutable and owned by `gateway.request_path` and the steps it calls. Owns request ids,
deadlines and the bound on requests that are open at once; must not know how anything else is found
out.
"""

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from contracts.errors import PoolSaturated
from contracts.ids import ModelName, NodeId, RegionId, RequestId, create_request_id
from contracts.inference import Usage
from gateway.settings import LimitSettings
from gateway.sources import Sources
from tenancy.interfaces import Principal

UNKNOWN_MODEL: Final = ModelName("")
_REQUEST_ID_BITS: Final = 74


class Tally(Protocol):
    """Four counts of one attempt at a request, in this order: prompt, cached, generated and
    reasoning tokens. A list, or cells of a file that outlives the process.
    """

    def __getitem__(self, index: int, /) -> int:
        """One of the counts."""
        ...

    def __setitem__(self, index: int, value: int, /) -> None:
        """Sets one of them."""
        ...


def create_tally() -> Tally:
    """Counts in memory, all zero."""
    return [0, 0, 0, 0]


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
    principal: Principal | None = None
    node_id: NodeId | None = None
    """The node of the latest attempt, and its region."""
    region: RegionId | None = None
    num_attempts: int = 0
    usage: Usage | None = None
    """Of the attempt that answered, or failed last: what its node has told, or what had come from
    it when it went. The tenant pays for this: for what was served, and not for what our nodes have
    lost on the way to it."""
    usage_of_retried: Usage | None = None
    """What the attempts before that one consumed, summed: ours to pay, yet it kept nodes busy."""
    wants_explanation: bool = False
    explanation: bytes = b""
    """A header line on why the node was chosen, for clients that ask."""
    first_text_s: float | None = None
    """When a stream's first text went out, in seconds since the request began."""
    limit_lines: bytes = b""
    """Header lines on where the client's limit stands."""

    @property
    def usage_of_all(self) -> Usage | None:
        """What all attempts consumed together; None when no node has told any."""
        if self.usage_of_retried is None or self.usage is None:
            return self.usage or self.usage_of_retried
        return add_usages([self.usage_of_retried, self.usage])

    def set_usage_aside(self) -> None:
        """The attempt is over and another follows."""
        self.usage_of_retried, self.usage = self.usage_of_all, None


def add_usages(usages: Sequence[Usage]) -> Usage:
    """The sum of `usages`, field by field."""
    return Usage(*map(sum, zip(*map(msgspec.structs.astuple, usages), strict=True)))


class OpenRequests:
    """Begins and ends requests."""

    def __init__(self, limits: LimitSettings, gateway_region: RegionId, sources: Sources) -> None:
        """`gateway_region` is where this gateway stands, for the ray id."""
        self._limits = limits
        self._sources = sources
        self._ray_suffix = f"-{gateway_region.upper()}"
        self._num_open = 0

    @property
    def num_open(self) -> int:
        """Requests that have begun and not ended."""
        return self._num_open

    def begin(self, route: str) -> RequestContext:
        """A new request's context; `end` must follow."""
        self._num_open += 1
        unix_s = self._sources.unix_s()
        return RequestContext(
            request_id=create_request_id(
                int(unix_s * 1000), self._sources.random_bits(_REQUEST_ID_BITS)
            ),
            route=route,
            started_s=self._sources.monotonic_s(),
            started_unix_s=unix_s,
            deadline_unix_ms=int((unix_s + self._limits.request_deadline_s) * 1000),
        )

    def end(self, context: RequestContext) -> float:
        """How long the request took, in seconds."""
        self._num_open -= 1
        return self._sources.monotonic_s() - context.started_s

    def require_room(self) -> None:
        """Raises `PoolSaturated` when more requests are open than may be."""
        if self._num_open > self._limits.max_concurrent_requests:
            raise PoolSaturated("This gateway is serving as many requests as it can.")

    def measure_s(self, context: RequestContext) -> float:
        """Seconds since the request began."""
        return self._sources.monotonic_s() - context.started_s

    def list_headers(self, context: RequestContext) -> list[tuple[bytes, bytes]]:
        """The ids of the request and, once it has one, its node and region."""
        lines = self.format_headers(context).split(b"\r\n")[:-1]
        return [(name, value) for name, _, value in (line.partition(b": ") for line in lines)]

    def format_headers(self, context: RequestContext) -> bytes:
        """The same as whole lines. Ids, node and region are of checked shape."""
        request_id = context.request_id
        ray = request_id[-12:] + request_id[19:23] + self._ray_suffix
        if context.node_id is None:
            return f"x-request-id: {request_id}\r\ncf-ray: {ray}\r\n".encode() + context.limit_lines
        lines = (
            f"x-request-id: {request_id}\r\ncf-ray: {ray}\r\nx-hearth-node: "
            f"{context.node_id}\r\nx-hearth-region: {context.region}\r\n"
        ).encode()
        return lines + context.explanation + context.limit_lines
